"""Egress of pods that run the user's own code: destinations outside the job to which they may connect.

The entries have the shape of Kubernetes' NetworkPolicyEgressRule.
"""

from enum import StrEnum
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Annotated, TypeAlias

from pydantic import AfterValidator, Field, model_validator

from kubealign.spec.base import (
    CIDR_PATTERN,
    DNS_LABEL_PATTERN,
    SpecModel,
    distinct_items,
    field_errors,
    require_exactly_one,
)
from kubealign.spec.pods.template import Key, LabelValue

#: Addresses under which clouds serve the credentials of a node: link-local ones, and that of EC2 in IPv6.
METADATA_BLOCKS = ("169.254.0.0/16", "fd00:ec2::254/128", "fe80::/10")

#: Message for a block of metadata addresses.
SERVES_METADATA = (
    "holds only link-local or metadata addresses, where clouds serve the credentials of a node: remove it"
)
#: Message for an exception that is not within its block.
OUTSIDE_BLOCK = "must be a part of cidr, and smaller"
#: Message for the last port of a range.
ENDS_BEFORE_START = "must be at least port"


def check_cidr(value: str) -> str:
    """Return the block of addresses in CIDR notation if it is one. Raises ValueError with the remedy."""
    try:
        network = ip_network(value, strict=False)
    except ValueError as error:
        raise ValueError("must be a block of addresses such as 10.1.0.0/16 or 2001:db8::/32") from error
    if str(network) != value:
        raise ValueError(f"is not the usual notation of a block: write {network}")
    return value


def within_block(inner: str, outer: str) -> bool:
    """Return True if all addresses of a block are in another one, which may be equal."""
    network, container = ip_network(inner), ip_network(outer)
    if isinstance(network, IPv4Network):
        return isinstance(container, IPv4Network) and network.subnet_of(container)
    return isinstance(container, IPv6Network) and network.subnet_of(container)


Cidr: TypeAlias = Annotated[
    str,
    # The pattern is for the API server only; the validator's error names the notation to write.
    Field(min_length=1, max_length=43, json_schema_extra={"pattern": CIDR_PATTERN}),
    AfterValidator(check_cidr),
]


class IpBlock(SpecModel):
    """A block of addresses. Addresses of metadata services and of the API server in it stay excluded."""

    cidr: Cidr = Field(description="Block of IPv4 or IPv6 addresses, such as 10.1.0.0/16.")
    exceptions: Annotated[list[Cidr], distinct_items] = Field(
        default_factory=list, max_length=16, alias="except", description="Blocks within cidr to leave out."
    )

    @model_validator(mode="after")
    def _reachable(self) -> "IpBlock":
        """Check that the block has other addresses than metadata, and that the exceptions are within it."""
        if any(within_block(self.cidr, block) for block in METADATA_BLOCKS):
            raise field_errors("IpBlock", (("cidr",), self.cidr, SERVES_METADATA))
        problems = [
            (("except", index), block, f"{OUTSIDE_BLOCK} ({self.cidr})")
            for index, block in enumerate(self.exceptions)
            if block == self.cidr or not within_block(block, self.cidr)
        ]
        if problems:
            raise field_errors("IpBlock", *problems)
        return self


class EgressNamespace(SpecModel):
    """Pods of a namespace."""

    name: Annotated[str, Field(pattern=DNS_LABEL_PATTERN, max_length=63)] = Field(
        description="Name of the namespace."
    )
    pod_labels: dict[Key, LabelValue] = Field(
        default_factory=dict, max_length=16, description="Labels that the pods must have; empty: all pods."
    )


class Anywhere(SpecModel):
    """All addresses except those of metadata services and of the API server.

    Pods of the cluster are in it only where the network plugin matches pods by address: name their namespace.
    """


class EgressProtocol(StrEnum):
    """TCP or UDP."""

    TCP = "TCP"
    UDP = "UDP"


class EgressPort(SpecModel):
    """A port, or a range of ports, of the destination."""

    port: int = Field(ge=1, le=65535, description="Port of the destination; for a Service that of its pods.")
    end_port: int | None = Field(
        None, ge=1, le=65535, description="Last port of a range that begins with port; null: port alone."
    )
    protocol: EgressProtocol = Field(EgressProtocol.TCP, description="Protocol of the port.")

    @model_validator(mode="after")
    def _ordered(self) -> "EgressPort":
        """Check that the range is not empty."""
        if self.end_port is not None and self.end_port < self.port:
            raise field_errors("Port", (("endPort",), self.end_port, f"{ENDS_BEFORE_START} ({self.port})"))
        return self


#: Fields of `EgressRule`, exactly one of which is set.
EGRESS_DESTINATIONS = ("ip_block", "namespace", "anywhere")


class EgressRule(SpecModel):
    """A destination: exactly one of ipBlock, namespace and anywhere."""

    ip_block: IpBlock | None = Field(None, description="Addresses, inside or outside the cluster.")
    namespace: EgressNamespace | None = Field(None, description="Pods of a namespace.")
    anywhere: Anywhere | None = Field(None, description="All addresses outside the cluster.")
    ports: list[EgressPort] = Field(
        default_factory=list, max_length=16, description="Ports of the destination; empty: all."
    )

    @model_validator(mode="after")
    def _one_destination(self) -> "EgressRule":
        """Check that exactly one destination is set."""
        require_exactly_one(self, list(EGRESS_DESTINATIONS), example="anywhere: {}")
        return self


Egress: TypeAlias = Annotated[list[EgressRule], Field(max_length=16)]

#: Description of the field `egress`, after the name of what connects.
EGRESS_DESCRIPTION = (
    "may connect to in a cluster, in addition to the job's own pods, DNS and Redis; empty: nothing else. On "
    "one machine it has no effect."
)
