"""Model runner of one process of several: over its slice of the weights, together with the other processes.
"""

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

# Largest size of a process's error text, in bytes.
_OUTCOME = 1024


class SlicedPasses(LocalPasses):
    """A runner whose methods all processes call in the same order.

    names: names of the weights, in an order that is the same in all processes.
    """

    def __init__(self, model: SlicedModel, shard: Shard) -> None:
        super().__init__(model)
        # Collectives are not recorded in CUDA graphs.
        self._graphs = None
        self._shard = shard
        self._adapted = AdaptedWeights(model.module, _norms)
        self._whole: dict[str, Tensor] = model.whole.state_dict(keep_vars=True)
        self._local: dict[str, Tensor] = model.module.state_dict(keep_vars=True)
        self.names = list(self._whole)

    @torch.no_grad()
    def lead_weight(self, name: str, whole: Tensor) -> None:
        """Send each process its slice of a weight, and load this process's own. The other processes call
        `receive_weight`.
        """
        self._renewed()
        local = self._local[name]
        for rank in range(1, self._shard.size):
            part = piece(name, whole, Shard(rank, self._shard.size))
            if part.numel():
                # Converted and moved first, so that no more than the model's own precision is transferred.
                dist.send(part.to(local.device, local.dtype).contiguous(), dst=rank)
        part = piece(name, whole, self._shard)
        _within(local, part).copy_(part)

    @torch.no_grad()
    def receive_weight(self, name: str) -> None:
        """Receive this process's slice of a weight from the first process."""
        self._renewed()
        local = self._local[name]
        shape = piece(name, self._whole[name], self._shard).shape
        if shape.numel():
            part = torch.empty(shape, dtype=local.dtype, device=local.device)
            dist.recv(part, src=0)
            _within(local, part).copy_(part)

    @torch.no_grad()
    def take_own(self, slices: Iterable[WeightSlice]) -> None:
        """Copy slices that this process has fetched itself."""
        self._renewed()
        for part in slices:
            _within(self._local[part.name], part.tensor).copy_(part.tensor)

    def _renewed(self) -> None:
        self._adapted.forget()
        self.model.renewed()

    def outcomes(self, mine: str) -> list[str]:
        """Gather each process's error text, empty for success. Returns them in the first process, an empty
        list in the others.
        """
        text = mine.encode()[:_OUTCOME]
        block = torch.zeros(_OUTCOME, dtype=torch.uint8)
        block[: len(text)] = torch.tensor(list(text), dtype=torch.uint8)
        first = self._shard.rank == 0
        blocks = [torch.empty_like(block) for _ in range(self._shard.size)] if first else None
        dist.gather(block, blocks, dst=0)
        return [bytes(each.tolist()).rstrip(b"\0").decode(errors="replace") for each in blocks or ()]

    def adapt(self, tensors: Iterable[tuple[str, Tensor]], scale: float) -> None:
        """Merge this process's slice of a complete adapter, which all processes receive."""
        layers = by_layer(tensors).items()
        parts = ((layer, adapter_piece(layer, adapter, self._shard)) for layer, adapter in layers)
        super().adapt((named for layer, part in parts for named in part.named(layer)), scale)


def _within(local: Tensor, part: Tensor) -> Tensor:
    """Return the region of a local weight that a slice fills: the last shards of a vocabulary have padding
    rows.
    """
    return local[tuple(slice(0, size) for size in part.shape)]


def _norms(layer: str, weight: Tensor) -> Tensor:
    if not splits_inputs(layer):
        return row_norms(weight)
    squares = weight.square().sum(dim=1)
    dist.all_reduce(squares)
    return squares.sqrt()
