"""Core attention of megatron-core's attention layer for packed sequences, without a mask over the pack."""

from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from kubealign_services.training.megatron_backend.parallel.context_attention import (
    ContextPlan,
    context_attention,
)
from kubealign_services.training.torch_backend.packing.packed_attention import PLAN_ARGUMENT, packed_attention


class PackedCoreAttention(nn.Module):
    """Replacement of megatron-core's `DotProductAttention`.

    Uses the torch backend's attention, so both backends compute the same and Transformer Engine is not
    needed.
    """

    def __init__(
        self,
        *,
        window: int | None,
        recompute: bool,
        softmax_scale: float | None = None,
        pg_collection: Any = None,
        **_: Any,
    ) -> None:
        """Construct as megatron-core's layer does.

        Args:
            window: Number of tokens that a token sees, up to and including itself; None for all.
            recompute: Recompute the scores in the backward pass (Korthikanti et al. 2022, selective
                recomputation).
        """
        super().__init__()
        self.window = window
        self.recompute = recompute
        self.scale = softmax_scale
        self.context: dist.ProcessGroup = pg_collection.cp

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        *,
        packed_seq_params: Any,
        **_: Any,
    ) -> Tensor:
        """Compute attention. Returns [t, 1, heads x d].

        Args:
            query: [t, 1, heads, d].
            key, value: [t, 1, kv heads, d].
        """
        attend = self._attend
        if self.recompute and self.training:
            output = checkpoint(
                attend,
                query,
                key,
                value,
                packed_seq_params.plan,
                use_reentrant=False,
                preserve_rng_state=False,
            )
        else:
            output = attend(query, key, value, packed_seq_params.plan)
        return output.reshape(output.shape[0], 1, -1)

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, plan: Any) -> Tensor:
        """Map [t, 1, heads, d] to [t, heads, d]."""
        if isinstance(plan, ContextPlan):
            return context_attention(
                query[:, 0], key[:, 0], value[:, 0], plan, self.context, self.scale, self.window
            )
        q, k, v = (states.permute(1, 2, 0, 3) for states in (query, key, value))
        output, _ = packed_attention(
            self, q, k, v, None, scaling=self.scale, sliding_window=self.window, **{PLAN_ARGUMENT: plan}
        )
        return output[0]
