"""A causal LM of which this process holds a slice; the other processes compute the rest of each pass at the
same time.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import embedding

from kubealign_services.generation.torch_engine.attention.attention_plan import EngineAttentionPlan
from kubealign_services.generation.torch_engine.model.causal_model import CausalModel
from kubealign_services.generation.torch_engine.tensor_parallel.sharding import (
    ModelShard,
    check_divisible,
    shard_config,
    splits_inputs,
)


class ShardedModel(CausalModel):
    """A model that is created and run by all processes of the group together: each pass has two all-reduces
    per layer.

    full_model: the complete model without memory (on torch's meta device), for its names, shapes and ties.
    """

    def __init__(self, config: Any, dtype: torch.dtype, device: torch.device, shard: ModelShard) -> None:
        """Build this process's slice. Raises UnsupportedEngineModel, IndivisibleModel."""
        check_divisible(config.get_text_config(), shard)
        self._shard = shard
        self.full_model = self._instantiate(config, dtype, torch.device("meta"))
        self.full_model.tie_weights()
        super().__init__(config, dtype, device)

    def forward(
        self, tokens: Tensor, positions: Tensor, plan: EngineAttentionPlan, keep: Tensor | None
    ) -> Tensor:
        """Compute logits in the first process; see `CausalModel.forward`.

        The other processes return undefined values of the same shape.
        """
        part = super().forward(tokens, positions, plan, keep)
        first = self._shard.rank == 0
        parts = [torch.empty_like(part) for _ in range(self._shard.size)] if first else None
        dist.gather(part.contiguous(), parts, dst=0)
        if parts is None:
            return part.new_zeros(()).expand(len(part), self.vocabulary)
        return torch.cat(parts, dim=-1)[:, : self.vocabulary]

    def _build_module(self, config: Any, dtype: torch.dtype, device: torch.device) -> Any:
        module = self._instantiate(shard_config(config, self._shard), dtype, device)
        sliced = _VocabParallelEmbedding(module.get_input_embeddings().weight, self._shard)
        module.set_input_embeddings(sliced)
        for name, layer in module.named_modules():
            if splits_inputs(name):
                layer.register_forward_hook(_all_reduce_output)
        return module


class _VocabParallelEmbedding(torch.nn.Module):
    """Embedding whose rows, the vocabulary, are divided among the processes."""

    def __init__(self, weight: torch.nn.Parameter, shard: ModelShard) -> None:
        super().__init__()
        self.weight = weight
        self._first = shard.rank * len(weight)

    def forward(self, tokens: Tensor) -> Tensor:
        local = tokens - self._first
        is_local = (local >= 0) & (local < len(self.weight))
        states = embedding(local.clamp(0, len(self.weight) - 1), self.weight)
        states = states.masked_fill(~is_local[..., None], 0)
        dist.all_reduce(states)
        return states


def _all_reduce_output(module: torch.nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
    dist.all_reduce(output)
    return output
