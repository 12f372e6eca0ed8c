"""Model runner of one process of several, over its slice of the weights."""

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor

from kubealign_services.generation.torch_engine.model.adapter_merge import MergedAdapter
from kubealign_services.generation.torch_engine.model.model_runner import LocalModelRunner
from kubealign_services.generation.torch_engine.tensor_parallel.sharded_model import ShardedModel
from kubealign_services.generation.torch_engine.tensor_parallel.sharding import (
    ModelShard,
    shard_adapter,
    shard_tensor,
    splits_inputs,
)
from kubealign_services.training.adapters.lora import group_by_layer, row_norms
from kubealign_services.training.weight_slices import WeightSlice

# Largest size of a process's error text, in bytes.
_OUTCOME_BYTES = 1024


class ShardedModelRunner(LocalModelRunner):
    """A runner whose methods all processes call in the same order.

    names: names of the weights, in an order that is the same in all processes.
    """

    def __init__(self, model: ShardedModel, shard: ModelShard) -> None:
        super().__init__(model)
        # Collectives are not recorded in CUDA graphs.
        self._graphs = None
        self._shard = shard
        self._adapters = MergedAdapter(model.module, _sharded_row_norms)
        self._full_weights: dict[str, Tensor] = model.full_model.state_dict(keep_vars=True)
        self._local_weights: dict[str, Tensor] = model.module.state_dict(keep_vars=True)
        self.names = list(self._full_weights)

    @torch.no_grad()
    def send_weight(self, name: str, weight: Tensor) -> None:
        """Send each process its slice of a weight, and load this process's own.

        The other processes call `receive_weight`.
        """
        self._invalidate_weights()
        local = self._local_weights[name]
        for rank in range(1, self._shard.size):
            part = shard_tensor(name, weight, ModelShard(rank, self._shard.size))
            if part.numel():
                # Converted and moved first, so that no more than the model's own precision is transferred.
                dist.send(part.to(local.device, local.dtype).contiguous(), dst=rank)
        part = shard_tensor(name, weight, self._shard)
        _local_region(local, part).copy_(part)

    @torch.no_grad()
    def receive_weight(self, name: str) -> None:
        """Receive this process's slice of a weight from the first process."""
        self._invalidate_weights()
        local = self._local_weights[name]
        shape = shard_tensor(name, self._full_weights[name], self._shard).shape
        if shape.numel():
            part = torch.empty(shape, dtype=local.dtype, device=local.device)
            dist.recv(part, src=0)
            _local_region(local, part).copy_(part)

    @torch.no_grad()
    def load_own_slices(self, slices: Iterable[WeightSlice]) -> None:
        """Copy slices that this process has fetched itself."""
        self._invalidate_weights()
        for part in slices:
            _local_region(self._local_weights[part.name], part.tensor).copy_(part.tensor)

    def _invalidate_weights(self) -> None:
        self._adapters.forget()
        self.model.invalidate_weights()

    def gather_outcomes(self, own_outcome: str) -> list[str]:
        """Gather each process's error text, empty for success.

        Returns them in the first process, an empty list in the others.
        """
        text = own_outcome.encode()[:_OUTCOME_BYTES]
        block = torch.zeros(_OUTCOME_BYTES, dtype=torch.uint8)
        block[: len(text)] = torch.tensor(list(text), dtype=torch.uint8)
        first = self._shard.rank == 0
        blocks = [torch.empty_like(block) for _ in range(self._shard.size)] if first else None
        dist.gather(block, blocks, dst=0)
        return [bytes(each.tolist()).rstrip(b"\0").decode(errors="replace") for each in blocks or ()]

    def load_adapter(self, tensors: Iterable[tuple[str, Tensor]], scale: float) -> None:
        """Merge this process's slice of a complete adapter, which all processes receive."""
        layers = group_by_layer(tensors).items()
        parts = ((layer, shard_adapter(layer, adapter, self._shard)) for layer, adapter in layers)
        super().load_adapter((named for layer, part in parts for named in part.named_tensors(layer)), scale)


def _local_region(local: Tensor, part: Tensor) -> Tensor:
    """Return the region of a local weight that a slice fills: the last shards of a vocabulary have padding
    rows.
    """
    return local[tuple(slice(0, size) for size in part.shape)]


def _sharded_row_norms(layer: str, weight: Tensor) -> Tensor:
    if not splits_inputs(layer):
        return row_norms(weight)
    squares = weight.square().sum(dim=1)
    dist.all_reduce(squares)
    return squares.sqrt()
