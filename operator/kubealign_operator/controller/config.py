"""The operator's configuration file, set by the platform's administrator."""

from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic.alias_generators import to_camel

from kubealign.access.redis_names import CLUSTER_ID_PATTERN
from kubealign.spec.base import ObjectName
from kubealign.spec.pods.egress import Cidr
from kubealign_operator.kube_views.lenient_json import get_path
from kubealign_operator.manifests.context import Platform

# Required by the client library's leader election.
_MAX_JITTER = 1.2


class ConfigError(Exception):
    """The file is invalid; the message names the field, its value and the allowed values."""


class _Section(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True)


class PeerBlock(_Section):
    """A block of addresses."""

    cidr: Cidr


class PeerSelector(_Section):
    """Selection of pods or namespaces by labels; empty: all."""

    match_labels: dict[str, str] = {}


class NetworkPeer(_Section):
    """A NetworkPolicyPeer of Kubernetes: a block of addresses, or pods by namespace and labels."""

    ip_block: PeerBlock | None = None
    namespace_selector: PeerSelector | None = None
    pod_selector: PeerSelector | None = None

    @model_validator(mode="after")
    def _check_members(self) -> "NetworkPeer":
        selects = self.namespace_selector is not None or self.pod_selector is not None
        if selects == (self.ip_block is not None):
            raise ValueError("must have either ipBlock, or namespaceSelector and podSelector")
        return self


class PlatformConfig(_Section):
    """Settings for the pods of every job; the fields are those of `manifests.context.Platform`."""

    image: str = Field(min_length=1, description="Image of the role processes.")
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] = "IfNotPresent"
    python: str = Field("python", min_length=1, description="Python interpreter in the image.")
    bus_image: str = Field("", description="Image of the bus, with `python`; empty: that of the roles.")
    redis_host: str = Field(min_length=1, description="Redis host as resolved by the jobs' pods.")
    redis_port: int = Field(6379, ge=1, le=65535)
    redis_tls: bool = False
    cluster_id: str = Field(
        "", pattern=CLUSTER_ID_PATTERN, description="Identity in a Redis of several clusters; empty: of one."
    )
    redis_peers: list[NetworkPeer] = Field(
        [], description="Redis in the NetworkPolicies of jobs; empty: any address, at its port."
    )
    otlp_endpoint: str = Field(
        "",
        pattern=r"^(https?://[^\s/?#@]+/?)?$",
        description="Endpoint of OTLP over HTTP for the traces of jobs; empty: none.",
    )
    otlp_peers: list[NetworkPeer] = Field(
        [], description="The endpoint in the NetworkPolicies of jobs; empty: any address, at its port."
    )
    egress_except: list[Cidr] = Field(
        [], description="Addresses to which no job may connect: those of the API server."
    )
    dns_ports: list[Annotated[int, Field(ge=1, le=65535)]] = Field(
        [53], min_length=1, description="Ports of DNS in the NetworkPolicies of jobs."
    )
    pod_template: dict[str, Any] = Field({}, description="A strategic merge patch for every role pod.")
    profiles: dict[ObjectName, dict[str, Any]] = Field(
        {}, description="Pod templates that jobs choose by name, with podTemplate.profile."
    )
    default_resources: dict[str, dict[str, Any]] = Field({}, description="Resources by role.")
    run_as_user: int | None = Field(65532, ge=1, description="null: a user of the namespace's range.")
    fs_group: int | None = Field(65532, ge=1, description="null: a group of the namespace's range.")
    uses_kueue: bool = Field(False, description="Jobs with a queue label are admitted by Kueue.")
    start_one_at_a_time: bool = Field(
        False, description="Jobs without a queue create the pods that must run together one after the other."
    )
    start_turn_seconds: int = Field(
        300,
        ge=10,
        le=86400,
        description="Seconds after which a job whose pods do not all fit gives way to one that waits.",
    )
    max_processes: int = Field(2048, ge=1, le=65536, description="Processes that one job may have.")
    credentials_lifetime_days: int = Field(
        90,
        ge=1,
        le=3650,
        description="Days for which a job's certificates are valid; renewed after two thirds.",
    )

    @field_validator("pod_template")
    @classmethod
    def _check_host_network(cls, template: dict[str, Any]) -> dict[str, Any]:
        if get_path(template, "spec", "hostNetwork"):
            raise ValueError(
                "must not set hostNetwork, since the bus and other pods of a job would share ports: write a "
                "profile, and name it in the podTemplate of the roles that need the network of the node"
            )
        return template

    @field_validator("egress_except")
    @classmethod
    def _check_parts(cls, blocks: list[str]) -> list[str]:
        if any(ip_network(block).prefixlen == 0 for block in blocks):
            raise ValueError("must not have all addresses in it: name those of the API server")
        return blocks

    def platform(self, api_server: str = "") -> Platform:
        """Return the settings as the planner takes them.

        Args:
            api_server: Address of the API server, to which no job may connect; other texts, such as a host
                name, exclude nothing.
        """
        settings = self.model_dump()
        for name in ("redis_peers", "otlp_peers"):
            peers: list[NetworkPeer] = getattr(self, name)
            settings[name] = tuple(peer.model_dump(by_alias=True, exclude_none=True) for peer in peers)
        settings["dns_ports"] = tuple(self.dns_ports)
        settings["egress_except"] = tuple(dict.fromkeys([*self.egress_except, *_address_block(api_server)]))
        return Platform(**settings)


def _address_block(address: str) -> list[str]:
    """Return the block of one address; empty for a text that is no address."""
    try:
        return [str(ip_network(ip_address(address)))]
    except ValueError:
        return []


class RedisQuota(_Section):
    """Limit of what one job stores in Redis, beyond which its metrics there are removed."""

    max_keys: int = Field(10_000, ge=1, description="Keys of a job: three, and one for each process.")
    max_bytes: int = Field(
        128 * 2**20, ge=2**20, description="Memory of a job's keys: some KiB a step, and 16 MiB of samples."
    )
    interval_seconds: float = Field(60.0, ge=1, description="Seconds between two checks.")


class RedisConfig(_Section):
    """Access of the operator to Redis, with a user that may create users."""

    host: str = Field(min_length=1)
    port: int = Field(6379, ge=1, le=65535)
    tls: bool = False
    ca_file: Path | None = Field(None, description="PEM; null: the image's trusted certificates.")
    user: str = "default"
    password_file: Path | None = Field(None, description="Read at each connection; null: no password.")
    quota: RedisQuota = RedisQuota()


class LeaderElectionConfig(_Section):
    """Leader election. A lease lasts longer than its holder tries to renew it, so two never hold it."""

    lease_name: str = Field("kubealign-operator", min_length=1)
    namespace: str | None = Field(None, description="Namespace of the Lease; null: the operator's own.")
    lease_seconds: int = Field(
        15, ge=2, le=300, description="Duration after which another replica may acquire the lease."
    )
    renew_deadline_seconds: float = Field(
        10.0, gt=0, description="Duration after which the holder stops trying to renew."
    )
    retry_seconds: float = Field(2.0, ge=1, description="Seconds between two attempts.")

    @model_validator(mode="after")
    def _check_order(self) -> "LeaderElectionConfig":
        if not _MAX_JITTER * self.retry_seconds < self.renew_deadline_seconds < self.lease_seconds:
            raise ValueError(
                f"must satisfy {_MAX_JITTER} retrySeconds < renewDeadlineSeconds < leaseSeconds, not "
                f"{self.retry_seconds:g}, {self.renew_deadline_seconds:g}, {self.lease_seconds}"
            )
        return self


class OperatorConfig(_Section):
    """The complete configuration file."""

    namespaces: list[str] = Field([], description="Namespaces whose jobs are reconciled; empty: all.")
    platform: PlatformConfig
    redis: RedisConfig | None = Field(None, description="null: jobs run without progress in their status.")
    metrics_address: str = Field("0.0.0.0:8080", description="host:port of /metrics.")
    health_address: str = Field("0.0.0.0:8081", description="host:port of /livez and /readyz.")
    leader_election: LeaderElectionConfig | None = Field(
        LeaderElectionConfig(), description="null: one replica."
    )
    workers: int = Field(8, ge=1, le=64, description="Jobs that are reconciled concurrently.")
    resync_seconds: float = Field(600.0, ge=1, description="Seconds between two reconciles of all jobs.")
    request_seconds: float = Field(15.0, gt=0, le=120, description="Timeout of one call to the API server.")
    progress_seconds: float = Field(2.0, ge=0.1, description="Seconds between two reads of Redis.")
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    kubeconfig: Path | None = Field(None, description="null: the pod's own service account.")


def load_config(path: Path) -> OperatorConfig:
    """Load the configuration.

    Raises:
        ConfigError: The file is invalid.
    """
    try:
        document = yaml.safe_load(path.read_text())
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not YAML: {error}") from error
    try:
        return OperatorConfig.model_validate(document)
    except ValidationError as error:
        lines = [
            f"{path}: {_field_path(details['loc'])} {_error_message(details)}" for details in error.errors()
        ]
        raise ConfigError("\n".join(lines)) from error


def _field_path(path: tuple[int | str, ...]) -> str:
    return ".".join(str(part) for part in path) or "the file"


def _error_message(details: Any) -> str:
    message = str(details["msg"]).removeprefix("Value error, ")
    value = details.get("input")
    return message if isinstance(value, dict) else f"held {value!r}: {message}"
