"""The passes of one process of several: over its slice of the weights, together with the others."""

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor

from kubealign_services.adapters.low_rank import by_layer, row_norms
from kubealign_services.generation.torch_engine.adapted_weights import AdaptedWeights
from kubealign_services.generation.torch_engine.passes import LocalPasses
from kubealign_services.generation.torch_engine.tensor_parallel.model import SlicedModel
from kubealign_services.generation.torch_engine.tensor_parallel.slicing import (
    Shard,
    adapter_piece,
    piece,
    splits_inputs,
)
from kubealign_services.training.slices import WeightSlice

# Bytes of what a process says of its failure.
_OUTCOME = 1024


class SlicedPasses(LocalPasses):
    """All processes call the same methods in the same order.

    names: of the weights, in an order that is the same everywhere.
    """

    def __init__(self, model: SlicedModel, shard: Shard) -> None:
        super().__init__(model)
        # What the processes say to each other is not recorded.
        self._graphs = None
        self._shard = shard
        self._adapted = AdaptedWeights(model.module, _norms)
        self._whole: dict[str, Tensor] = model.whole.state_dict(keep_vars=True)
        self._local: dict[str, Tensor] = model.module.state_dict(keep_vars=True)
        self.names = list(self._whole)

    @torch.no_grad()
    def lead_weight(self, name: str, whole: Tensor) -> None:
        """The first process's part in handing out a weight: the others `receive_weight` theirs."""
        self._renewed()
        local = self._local[name]
        for rank in range(1, self._shard.size):
            part = piece(name, whole, Shard(rank, self._shard.size))
            if part.numel():
                # Converted and moved first, so that the wire has no more than the model keeps.
                dist.send(part.to(local.device, local.dtype).contiguous(), dst=rank)
        part = piece(name, whole, self._shard)
        _within(local, part).copy_(part)

    @torch.no_grad()
    def receive_weight(self, name: str) -> None:
        """Take this process's part of a weight from the first."""
        self._renewed()
        local = self._local[name]
        shape = piece(name, self._whole[name], self._shard).shape
        if shape.numel():
            part = torch.empty(shape, dtype=local.dtype, device=local.device)
            dist.recv(part, src=0)
            _within(local, part).copy_(part)

    @torch.no_grad()
    def take_own(self, slices: Iterable[WeightSlice]) -> None:
        """Copy this process's parts, which it has fetched itself."""
        self._renewed()
        for part in slices:
            _within(self._local[part.name], part.tensor).copy_(part.tensor)

    def _renewed(self) -> None:
        self._adapted.forget()
        self.model.renewed()

    def outcomes(self, mine: str) -> list[str]:
        """Each process says why it failed, or nothing. What they all said, for the first; the others get
        nothing."""
        said = mine.encode()[:_OUTCOME]
        block = torch.zeros(_OUTCOME, dtype=torch.uint8)
        block[: len(said)] = torch.tensor(list(said), dtype=torch.uint8)
        first = self._shard.rank == 0
        blocks = [torch.empty_like(block) for _ in range(self._shard.size)] if first else None
        dist.gather(block, blocks, dst=0)
        return [bytes(each.tolist()).rstrip(b"\0").decode(errors="replace") for each in blocks or ()]

    def adapt(self, tensors: Iterable[tuple[str, Tensor]], scale: float) -> None:
        """A whole adapter, which all processes are given alike: each merges its part."""
        layers = by_layer(tensors).items()
        parts = ((layer, adapter_piece(layer, whole, self._shard)) for layer, whole in layers)
        super().adapt((named for layer, part in parts for named in part.named(layer)), scale)


def _within(local: Tensor, part: Tensor) -> Tensor:
    """The last shards of a vocabulary have rows to spare."""
    return local[tuple(slice(0, size) for size in part.shape)]


def _norms(layer: str, whole: Tensor) -> Tensor:
    if not splits_inputs(layer):
        return row_norms(whole)
    squares = whole.square().sum(dim=1)
    dist.all_reduce(squares)
    return squares.sqrt()
