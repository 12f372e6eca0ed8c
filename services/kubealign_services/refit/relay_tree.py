"""Who streams one version from whom, so that no sender sends it to more than `fan_out` receivers. Pure.

The sender of a part keeps one tree for each version. A receiver that asks becomes the child of whoever is
nearest to the sender and has room: the sender itself, else a receiver that asked before, which hands on what
comes while it comes. Who asks first is therefore near the sender, and nobody is waited for. A receiver whose
parent fails asks again and gets another; that parent gets no more children. Where nobody else can serve it,
the sender does, beyond `fan_out` if need be: everybody gets the weights.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

#: The sender's own place in its tree.
SENDER = ""


@dataclass(frozen=True)
class Ask:
    """asker: unique to a process. address: where it serves others; empty: it does not. pieces: places of what
    it wants of the part; None: all. delta: the changes alone, which only those have who asked for them."""

    asker: str
    address: str = ""
    pieces: frozenset[int] | None = None
    delta: bool = False

    def has(self, other: "Ask") -> bool:
        """Whether it has what the other asks for. Who takes the changes has the weights that they result in,
        too."""
        if not self.address or (other.delta and not self.delta):
            return False
        return self.pieces is None or (other.pieces is not None and other.pieces <= self.pieces)


@dataclass(frozen=True)
class _Node:
    ask: Ask
    parent: str


@dataclass
class RelayTree:
    """Of one version of one part. fan_out: the most children of anyone."""

    fan_out: int
    _nodes: dict[str, _Node] = field(default_factory=dict)
    _lost: set[str] = field(default_factory=set)

    def parent_of(self, ask: Ask, lost: Iterable[str] = ()) -> str:
        """The address where the asker gets what it asks for; SENDER: from the sender itself. lost: addresses
        that failed it; of others than its own parent it is not believed."""
        failed = set(lost)
        held = self._nodes.pop(ask.asker, None)
        if held is not None and held.parent in failed:
            self._lost.add(held.parent)
        # Who asks is there, whatever others have said.
        self._lost.discard(ask.address)
        parent = self._nearest(ask, failed)
        self._nodes[ask.asker] = _Node(ask, parent)
        return parent

    def _nearest(self, ask: Ask, failed: set[str]) -> str:
        # Where a lost one had its place, there is room.
        children = Counter(node.parent for node in self._nodes.values() if node.ask.address not in self._lost)
        if children[SENDER] < self.fan_out:
            return SENDER
        parents = {node.ask.address: node.parent for node in self._nodes.values() if node.ask.address}
        avoided = failed | self._lost | {ask.address}
        best, least = SENDER, len(parents) + 1
        for node in self._nodes.values():
            address = node.ask.address
            if address in avoided or children[address] >= self.fan_out or not node.ask.has(ask):
                continue
            above = _above(address, parents)
            # What is below the asker waits for the asker.
            if len(above) < least and not (ask.address and ask.address in above):
                best, least = address, len(above)
        return best


def _above(address: str, parents: Mapping[str, str]) -> list[str]:
    """Its parent, that one's parent, and so on, as far as they are known."""
    found: list[str] = []
    while address in parents and len(found) <= len(parents):
        address = parents[address]
        found.append(address)
    return found
