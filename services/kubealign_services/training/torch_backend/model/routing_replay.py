"""Replay of recorded routing: each layer with experts uses the experts that the rollout engine chose for a
token, with gate weights of its own router (Ma et al. 2025, arXiv:2510.11370, R3).

The gradient reaches the router through the gate weights. The recorded experts travel among the model's
keyword arguments, as the attention plan does: gradient checkpointing runs a layer's forward pass again with
the arguments of its first pass. A hook of the layer's attention reads them: the hooks of the layer itself do
not run again.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from kubealign_services.batch.packed import Batch
from kubealign_services.training.expert_routing import (
    ROUTING,
    ExpertRouter,
    RoutingShape,
    gate_weights,
    unrecorded_mark,
)

#: Keyword argument through which models pass the recorded experts to their layers: int64 [layers, U, k], -1
#: for tokens that the layer's own router routes.
ROUTING_ARGUMENT = "kubealign_routing"


class RoutingReplay:
    """The layers of a model that replay recorded experts. shape: of a column that fits the model."""

    def __init__(self, routers: Sequence[ExpertRouter], shape: RoutingShape) -> None:
        """Attach to the layers of the routers, before the model is sharded."""
        self.shape = shape
        for index, router in enumerate(routers):
            layer = _LayerReplay(index, router.normalises)
            router.attention.register_forward_pre_hook(layer.read_arguments, with_kwargs=True)
            router.module.register_forward_hook(layer.replace_choice)


class _LayerReplay:
    """Hooks of one layer. Its attention's call sets the recorded experts, its router's call takes them."""

    def __init__(self, index: int, normalises: bool) -> None:
        self._index = index
        self._normalises = normalises
        self._recorded: Tensor | None = None

    def read_arguments(self, _: nn.Module, __: tuple[Any, ...], arguments: dict[str, Any]) -> None:
        routing = arguments.get(ROUTING_ARGUMENT)
        self._recorded = None if routing is None else routing[self._index]

    def replace_choice(
        self, _: nn.Module, __: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]
    ) -> tuple[Tensor, Tensor, Tensor] | None:
        recorded, self._recorded = self._recorded, None
        if recorded is None:
            return None
        logits, scores, own = output
        experts = torch.where(recorded < 0, own, recorded)
        return logits, gate_weights(logits, experts, self._normalises, scores.dtype), experts


def recorded_experts(batch: Batch, computed: Tensor | slice, device: torch.device) -> Tensor | None:
    """Return the recorded experts of a pack as `ROUTING_ARGUMENT`; None for a batch without a record.

    Args:
        computed: Indices of the batch's tokens that the pack computes.
    """
    column = batch.token_columns.get(ROUTING)
    if column is None:
        return None
    recorded = column[computed]
    experts = recorded.long().masked_fill(recorded == unrecorded_mark(recorded.numpy().dtype), -1)
    return experts.transpose(0, 1).contiguous().to(device)
