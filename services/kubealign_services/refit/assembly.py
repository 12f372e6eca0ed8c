"""Tensors of the pieces that came, one at a time."""

from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor

from kubealign.v1 import refit_pb2
from kubealign_services.refit.manifest import DTYPES, piece_view
from kubealign_services.refit.plan import Assembly, Plan
from kubealign_services.training.slices import WeightSlice


class Assembled:
    """The ranges of a plan, over and over: iterated, each is (name, tensor). One that lies in a single piece
    is a view; the others are put together when their turn comes, so that few take memory at once.

    snapshots: place of a part -> its bytes, as the manifest lays them out. lasts: nobody writes to them as
    long as there is a view of them, so that the tensors may be kept instead of copied.
    """

    def __init__(
        self,
        announcement: refit_pb2.WeightsAnnouncement,
        plan: Plan,
        snapshots: Mapping[int, memoryview],
        lasts: bool = False,
    ) -> None:
        self._announcement = announcement
        self._plan = plan
        self._snapshots = snapshots
        self.lasts = lasts

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        return ((piece.name, piece.tensor) for piece in self.slices())

    @property
    def announcement(self) -> refit_pb2.WeightsAnnouncement:
        """By which others find the same weights."""
        return self._announcement

    def __len__(self) -> int:
        return len(self._plan.assemblies)

    def release(self) -> None:
        """Be done with the bytes: there are no further tensors."""
        self._snapshots = {}

    def slices(self) -> Iterator[WeightSlice]:
        """The same, with where each range lies in its tensor."""
        for range_ in self._plan.assemblies:
            yield WeightSlice(
                range_.name, range_.whole_shape, range_.box.start, put_together(range_, self._piece)
            )

    def _piece(self, part: int, place: int) -> Tensor:
        return piece_view(self._snapshots[part], self._announcement.parts[part].tensors[place])


def put_together(assembly: Assembly, piece: Callable[[int, int], Tensor]) -> Tensor:
    """piece: (part, place) -> the tensor of that piece. A view of it where it holds the whole range."""
    if len(assembly.copies) == 1:
        (only,) = assembly.copies
        return piece(only.part, only.entry)[only.source]
    whole = torch.empty(assembly.box.shape, dtype=DTYPES[assembly.dtype])
    for copy in assembly.copies:
        whole[copy.target].copy_(piece(copy.part, copy.entry)[copy.source])
    return whole
