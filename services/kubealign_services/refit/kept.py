"""The version before, as a receiver keeps it: what the next one's changes are changes to."""

from collections.abc import Mapping
from dataclasses import dataclass

from kubealign.v1 import batch_pb2, refit_pb2
from kubealign_services.refit.changes import alike


@dataclass(frozen=True)
class _KeptPart:
    tensors: list[refit_pb2.TensorEntry]
    places: frozenset[int]
    snapshot: memoryview


class KeptWeights:
    """Verified parts in this process's own memory: as many bytes as are streamed for one version."""

    def __init__(self) -> None:
        self._weights: batch_pb2.WeightsId | None = None
        self._parts: dict[int, _KeptPart] = {}

    def keep(
        self,
        announcement: refit_pb2.WeightsAnnouncement,
        snapshots: Mapping[int, tuple[memoryview, tuple[int, ...]]],
    ) -> None:
        """Replace what is kept. snapshots: place of a part -> its bytes, and the places of the pieces that
        are there."""
        self._weights = announcement.weights
        self._parts = {
            announcement.parts[part].rank: _KeptPart(
                list(announcement.parts[part].tensors), frozenset(places), snapshot
            )
            for part, (snapshot, places) in snapshots.items()
        }

    def taken(
        self, base: batch_pb2.WeightsId, part: refit_pb2.WeightsPart, places: tuple[int, ...]
    ) -> memoryview | None:
        """The bytes of these pieces in the state `base`, which are not kept any longer; None: they are not
        here."""
        kept = self._parts.get(part.rank)
        if self._weights != base or kept is None:
            return None
        if not kept.places.issuperset(places) or not alike(kept.tensors, part.tensors):
            return None
        del self._parts[part.rank]
        return kept.snapshot

    def forget(self) -> None:
        """Nothing is sure any more, and the memory is free."""
        self._weights = None
        self._parts = {}
