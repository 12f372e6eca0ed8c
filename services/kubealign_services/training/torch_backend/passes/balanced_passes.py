"""Passes of a minibatch whose loss includes the balance of the model's routers."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from kubealign_services.algorithms.contract import Objective
from kubealign_services.batch.packed import Batch
from kubealign_services.training.collectives import all_reduce_sum
from kubealign_services.training.torch_backend.context_parallel.context_group import ContextGroup
from kubealign_services.training.torch_backend.model.packed_model import PackedModel, PackedTokens
from kubealign_services.training.torch_backend.model.router_balance import RouterBalance
from kubealign_services.training.torch_backend.packing.microbatches import Microbatch

#: Metrics: the loss before its coefficient, and the load of the most frequent expert, 1 where all are equal.
LOSS, LARGEST_LOAD = "router/balance_loss", "router/expert_load_max"


class BalancedPasses:
    """The balance in the passes of one minibatch over `world_size` ranks."""

    def __init__(self, balance: RouterBalance, coefficient: float, world_size: int) -> None:
        self._balance = balance
        self._coefficient = coefficient
        self._world_size = world_size
        self._has_fractions = False

    @torch.no_grad()
    def count_choices(
        self,
        model: PackedModel,
        minibatch: Batch,
        plan: Sequence[Microbatch],
        device: torch.device,
        context_group: ContextGroup | None,
    ) -> None:
        """Count the choices of all passes before the first backward pass needs them.

        A rank with one pass has counted them before its backward pass anyway. Collective.

        Args:
            context_group: Ranks that share the tokens of each pass.
        """
        if len(plan) == 1:
            return
        total = torch.zeros(self._balance.shape.experts, dtype=torch.float64)
        for microbatch in plan:
            packed = model.pack(minibatch.select(microbatch.sequences), device, context_group)
            self.before_pass(packed, microbatch.is_counted)
            model(packed, frozenset())
            total += self._balance.counts()
        self._set_fractions(total)

    def before_pass(self, packed: PackedTokens, is_counted: bool) -> None:
        """Prepare for a forward pass."""
        self._balance.before_pass(_multiplicity(packed) * float(is_counted))

    def after_pass(self) -> tuple[float, dict[str, float], dict[str, float]]:
        """Return the pass's part of the loss, and the metrics that add up and of which the maximum counts.

        Collective in the passes of ranks with one pass.
        """
        if not self._has_fractions:
            self._set_fractions(self._balance.counts())
        part = self._balance.loss()
        return self._coefficient * part, {LOSS: part}, {LARGEST_LOAD: self._balance.largest_load()}

    def _set_fractions(self, counts: Tensor) -> None:
        self._balance.set_fractions(all_reduce_sum(counts, self._world_size))
        self._has_fractions = True


@contextmanager
def balanced_passes(
    model: PackedModel, minibatch: Batch, objective: Objective, world_size: int, loss_scale: float
) -> Iterator[BalancedPasses | None]:
    """Yield the balance of the model's routers while gradients are enabled; None for an objective without it.

    Raises ValueError for a model without routers.
    """
    coefficient = balance_coefficient(model, objective) if torch.is_grad_enabled() else 0.0
    if not coefficient:
        yield None
        return
    balance = model.router_balance
    if balance is None:
        raise ValueError(
            f"algorithm.sft.routerLossCoefficient is {coefficient:g}; a model of type "
            f"{model.backbone.config.model_type} has no routers to balance: set 0, or remove it"
        )
    balance.begin(len(minibatch.tokens), coefficient * loss_scale)
    try:
        yield BalancedPasses(balance, coefficient, world_size)
    finally:
        balance.end()


def balance_coefficient(model: PackedModel, objective: Objective) -> float:
    """Return the weight of the balance in an objective's loss, of its attribute `router_coefficient`.

    None: the config's `router_aux_loss_coef` where it states `output_router_logits`, with which transformers
    adds the loss; otherwise 0. An objective without the attribute has no balance.
    """
    stated: float | None = getattr(objective, "router_coefficient", 0.0)
    if stated is not None:
        return stated
    config = model.backbone.config.get_text_config()
    if model.router_balance is None or not getattr(config, "output_router_logits", False):
        return 0.0
    return float(getattr(config, "router_aux_loss_coef", 0.0) or 0.0)


def _multiplicity(packed: PackedTokens) -> Tensor:
    """Return the number of the batch's tokens for which each token that this rank computes stands, int64
    [H].
    """
    length = packed.tokens.shape[1]
    if packed.pack_indices is None:
        counts = torch.ones(length, dtype=torch.int64, device=packed.tokens.device)
    else:
        counts = torch.bincount(packed.pack_indices, minlength=length)
    return counts if packed.token_slice is None else packed.token_slice.select_counts(counts)
