"""Relay tree of one version: assigns each receiver a source so that no sender serves more than `fan_out`
receivers. Pure.

The sender of a part keeps one tree for each version. A receiver that asks becomes the child of the nearest
node to the sender with a free slot: the sender itself, else an earlier receiver, which relays bytes as
they arrive. Early receivers are therefore near the sender, and no receiver waits for another to ask. A
receiver whose parent fails asks again and gets another parent; the failed parent gets no more children.
When no other node can serve it, the sender does, beyond `fan_out` if necessary: every receiver gets the
weights.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

#: Address of the sender's own node.
SENDER = ""


@dataclass(frozen=True)
class RelayRequest:
    """Request of a receiver.

    asker: unique to a process. address: where it relays; empty when it does not. pieces: indices of the
    requested pieces; None for all. delta: only the deltas, which only receivers that also asked for deltas
    can relay.
    """

    asker: str
    address: str = ""
    pieces: frozenset[int] | None = None
    delta: bool = False

    def can_serve(self, request: "RelayRequest") -> bool:
        """Return True when this receiver can relay the other request.

        A receiver of deltas also has the resulting weights.
        """
        if not self.address or (request.delta and not self.delta):
            return False
        return self.pieces is None or (request.pieces is not None and request.pieces <= self.pieces)


@dataclass(frozen=True)
class _Node:
    request: RelayRequest
    parent: str


@dataclass
class RelayTree:
    """Tree of one version of one part. fan_out: maximum number of children of a node."""

    fan_out: int
    _nodes: dict[str, _Node] = field(default_factory=dict)
    _lost: set[str] = field(default_factory=set)

    def assign_parent(self, request: RelayRequest, lost: Iterable[str] = ()) -> str:
        """Return the address that serves the request; SENDER for the sender itself.

        Args:
            lost: Addresses that failed the asker; only its own parent is then marked as lost.
        """
        failed = set(lost)
        previous = self._nodes.pop(request.asker, None)
        if previous is not None and previous.parent in failed:
            self._lost.add(previous.parent)
        # An asker is alive, even if other receivers reported it as lost.
        self._lost.discard(request.address)
        parent = self._nearest_parent(request, failed)
        self._nodes[request.asker] = _Node(request, parent)
        return parent

    def _nearest_parent(self, ask: RelayRequest, failed: set[str]) -> str:
        # Children that are lost do not count.
        children = Counter(
            node.parent for node in self._nodes.values() if node.request.address not in self._lost
        )
        if children[SENDER] < self.fan_out:
            return SENDER
        parents = {node.request.address: node.parent for node in self._nodes.values() if node.request.address}
        avoided = failed | self._lost | {ask.address}
        nearest, shortest = SENDER, len(parents) + 1
        for node in self._nodes.values():
            address = node.request.address
            if address in avoided or children[address] >= self.fan_out or not node.request.can_serve(ask):
                continue
            ancestors = _ancestors(address, parents)
            # A descendant of the asker would wait for the asker.
            if len(ancestors) < shortest and not (ask.address and ask.address in ancestors):
                nearest, shortest = address, len(ancestors)
        return nearest


def _ancestors(address: str, parents: Mapping[str, str]) -> list[str]:
    """Return the parent, its parent and so on, as far as known."""
    ancestors: list[str] = []
    while address in parents and len(ancestors) <= len(parents):
        address = parents[address]
        ancestors.append(address)
    return ancestors
