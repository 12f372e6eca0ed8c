"""The attention inside megatron-core's attention layer: packed sequences, without a mask over the pack."""

from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from kubealign_services.training.megatron_backend.core_context import ContextPlan, context_attention
from kubealign_services.training.torch_backend.packed_attention import PLAN, packed_attention


class PackedCoreAttention(nn.Module):
    """Stands where megatron-core's `DotProductAttention` would. It is the torch backend's attention, so both
    compute the same; Transformer Engine is not needed.
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
        """As megatron-core's layer makes it. window: how many tokens up to and with itself a token sees; None
        for all. recompute: whether the scores are made again in the backward pass (Korthikanti et al. 2022,
        selective recomputation)."""
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
        """query [t, 1, heads, d], key and value [t, 1, kv heads, d] -> [t, 1, heads x d]."""
        attend = self._attend
        if self.recompute and self.training:
            found = checkpoint(
                attend,
                query,
                key,
                value,
                packed_seq_params.plan,
                use_reentrant=False,
                preserve_rng_state=False,
            )
        else:
            found = attend(query, key, value, packed_seq_params.plan)
        return found.reshape(found.shape[0], 1, -1)

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, plan: Any) -> Tensor:
        """[t, 1, heads, d] -> [t, heads, d]."""
        if isinstance(plan, ContextPlan):
            return context_attention(
                query[:, 0], key[:, 0], value[:, 0], plan, self.context, self.scale, self.window
            )
        q, k, v = (states.permute(1, 2, 0, 3) for states in (query, key, value))
        found, _ = packed_attention(
            self, q, k, v, None, scaling=self.scale, sliding_window=self.window, **{PLAN: plan}
        )
        return found[0]
