"""The context from which the manifests of a job are built."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from kubealign.pod_contract import PodPorts
from kubealign.spec.job import AlignmentJob
from kubealign.spec.status import DependencyResult, ResultLocation
from kubealign_operator.manifests.volume_claims import volume_claims


@dataclass(frozen=True)
class Platform:
    """Settings of the Helm chart that affect the pods of jobs."""

    #: Image of every pod of a job.
    image: str
    #: Host of the platform's Redis, as pods resolve it.
    redis_host: str
    redis_port: int = 6379
    redis_tls: bool = False
    #: Identity of the cluster in a Redis that several clusters share; empty: it is not shared.
    cluster_id: str = ""
    #: NetworkPolicyPeers of Redis; empty: any address, at its port. None: jobs use no Redis.
    redis_peers: Sequence[Mapping[str, Any]] | None = ()
    #: Endpoint of OTLP over HTTP to which processes send traces; empty: they send none.
    otlp_endpoint: str = ""
    #: NetworkPolicyPeers of the endpoint; empty: any address, at its port.
    otlp_peers: Sequence[Mapping[str, Any]] = ()
    #: Blocks of addresses to which no job may connect, such as those of the API server.
    egress_except: Sequence[str] = ()
    #: Ports of DNS, as seen behind its Service.
    dns_ports: Sequence[int] = (53,)
    image_pull_policy: str = "IfNotPresent"
    #: Python interpreter in the image.
    python: str = "python"
    #: Image of the bus, whose `python` is on the PATH; empty: as of all other pods.
    bus_image: str = ""
    #: A pod template that is merged into every pod of every job, before the templates of the job itself.
    #: Every field of a pod but hostNetwork may be set.
    pod_template: Mapping[str, Any] = field(default_factory=dict)
    #: Name -> pod template that jobs choose with `podTemplate.profile`, merged after `pod_template`. Every
    #: field of a pod may be set.
    profiles: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    #: Role, such as trainer or nats -> `requests` and `limits` of its container. An absent role gets the
    #: built-in requests.
    default_resources: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    #: User of the pods, and its group. None: the cluster chooses, as OpenShift does for each namespace.
    run_as_user: int | None = 65532
    fs_group: int | None = 65532
    #: Jobs with a queue label are admitted by Kueue.
    uses_kueue: bool = False
    #: Jobs without a queue create the pods that must run together one job after the other.
    start_one_at_a_time: bool = False
    #: Seconds after which a job whose pods do not all fit gives way to another job that waits to start.
    start_turn_seconds: int = 300
    #: Processes that one job may have, its bus excluded.
    max_processes: int = 2048
    #: Days for which the certificates of a job are valid, from 1; renewed after two thirds.
    credentials_lifetime_days: int = 90


@dataclass(frozen=True)
class RenderContext:
    """A validated job together with everything its manifests depend on."""

    name: str
    namespace: str
    uid: str
    job: AlignmentJob
    platform: Platform
    #: Results of other jobs that the job builds on.
    dependencies: tuple[DependencyResult, ...] = ()
    #: Run directory from whose checkpoint the job starts; None: it starts from its initial weights.
    checkpoint_source: ResultLocation | None = None
    #: Generation of the credentials that the pods mount.
    credentials_generation: int = 1
    #: Generation of the job's document that the pods mount.
    document_generation: int = 1
    #: Ports of the pods that use the network of their node, by their first process.
    host_ports: Mapping[str, PodPorts] = field(default_factory=dict)

    @cached_property
    def claims(self) -> Mapping[str, bool]:
        """The PersistentVolumeClaims that the processes mount, mapped to True when they write to them."""
        locations = [*self.dependencies, *([self.checkpoint_source] if self.checkpoint_source else [])]
        return volume_claims(self.job, locations)

    def ports_of(self, process: str) -> PodPorts:
        """Return the ports of the pod whose first process has this name."""
        return self.host_ports.get(process, PodPorts())
