"""The previous weights version of a receiver: the base for delta updates."""

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
    """Verified parts in this process's own memory, as many bytes as are streamed for one version."""

    def __init__(self) -> None:
        self._weights: batch_pb2.WeightsId | None = None
        self._parts: dict[int, _KeptPart] = {}

    def keep(
        self,
        announcement: refit_pb2.WeightsAnnouncement,
        snapshots: Mapping[int, tuple[memoryview, tuple[int, ...]]],
    ) -> None:
        """Replace the cached weights.

        Args:
            snapshots: Index of a part -> its bytes, and the indices of the pieces that are present.
        """
        self._weights = announcement.weights
        self._parts = {
            announcement.parts[part].rank: _KeptPart(
                list(announcement.parts[part].tensors), frozenset(indices), snapshot
            )
            for part, (snapshot, indices) in snapshots.items()
        }

    def taken(
        self, base: batch_pb2.WeightsId, part: refit_pb2.WeightsPart, places: tuple[int, ...]
    ) -> memoryview | None:
        """Remove and return the bytes of these pieces in the state `base`; None when they are not cached."""
        cached = self._parts.get(part.rank)
        if self._weights != base or cached is None:
            return None
        if not cached.places.issuperset(places) or not alike(cached.tensors, part.tensors):
            return None
        del self._parts[part.rank]
        return cached.snapshot

    def forget(self) -> None:
        """Drop the cached weights and free their memory."""
        self._weights = None
        self._parts = {}
