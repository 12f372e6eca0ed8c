"""Assembles tensors from the received pieces, one at a time."""

from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor

from kubealign.v1 import refit_pb2
from kubealign_services.training.weight_slices import WeightSlice
from kubealign_services.weights.announce.manifest import DTYPES, piece_view
from kubealign_services.weights.receive.transfer_plan import TensorAssembly, TransferPlan


class AssembledTensors:
    """The tensor ranges of a transfer plan; iterating yields (name, tensor), and may be repeated.

    A range within a single piece is a view; other ranges are assembled when the iteration reaches them, so
    that few take memory at once.

    Args:
        snapshots: Index of a part -> its bytes, in the layout of the manifest.
        lasts: True when the bytes stay valid and unchanged as long as a view exists, so that the tensors
            may be kept instead of copied.
    """

    def __init__(
        self,
        announcement: refit_pb2.WeightsAnnouncement,
        plan: TransferPlan,
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
        """The announcement, by which other processes can fetch the same weights."""
        return self._announcement

    def __len__(self) -> int:
        return len(self._plan.assemblies)

    def release(self) -> None:
        """Release the bytes. No further tensors can be read."""
        self._snapshots = {}

    def slices(self) -> Iterator[WeightSlice]:
        """Yield the tensors with the position of each range in its full tensor."""
        for range_ in self._plan.assemblies:
            yield WeightSlice(
                range_.name, range_.whole_shape, range_.box.start, assemble_tensor(range_, self._piece)
            )

    def _piece(self, part: int, index: int) -> Tensor:
        return piece_view(self._snapshots[part], self._announcement.parts[part].tensors[index])


def assemble_tensor(assembly: TensorAssembly, get_piece: Callable[[int, int], Tensor]) -> Tensor:
    """Return the tensor of a range: a view when a single piece holds it, else a new tensor.

    Args:
        get_piece: (part index, piece index) -> the tensor of that piece.
    """
    if len(assembly.copies) == 1:
        (only,) = assembly.copies
        return get_piece(only.part, only.entry)[only.source]
    assembled = torch.empty(assembly.box.shape, dtype=DTYPES[assembly.dtype])
    for copy in assembly.copies:
        assembled[copy.target].copy_(get_piece(copy.part, copy.entry)[copy.source])
    return assembled
