"""The previous weights version of a receiver: the base for delta updates."""

from collections.abc import Mapping
from dataclasses import dataclass

from kubealign.v1 import batch_pb2, refit_pb2
from kubealign_services.weights.transfer.delta.writer import have_same_layout


@dataclass(frozen=True)
class _CachedPart:
    tensors: list[refit_pb2.TensorEntry]
    indices: frozenset[int]
    snapshot: memoryview


class DeltaBaseCache:
    """Verified parts in this process's own memory, as many bytes as are streamed for one version."""

    def __init__(self) -> None:
        self._weights: batch_pb2.WeightsId | None = None
        self._parts: dict[int, _CachedPart] = {}

    def replace(
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
            announcement.parts[part].rank: _CachedPart(
                list(announcement.parts[part].tensors), frozenset(indices), snapshot
            )
            for part, (snapshot, indices) in snapshots.items()
        }

    def pop(
        self, base: batch_pb2.WeightsId, part: refit_pb2.WeightsPart, indices: tuple[int, ...]
    ) -> memoryview | None:
        """Remove and return the bytes of these pieces in the state `base`; None when they are not cached."""
        cached = self._parts.get(part.rank)
        if self._weights != base or cached is None:
            return None
        if not cached.indices.issuperset(indices) or not have_same_layout(cached.tensors, part.tensors):
            return None
        del self._parts[part.rank]
        return cached.snapshot

    def clear(self) -> None:
        """Drop the cached weights and free their memory."""
        self._weights = None
        self._parts = {}
