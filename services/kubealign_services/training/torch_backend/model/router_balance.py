"""Load-balancing loss of the routers of a mixture of experts (Fedus et al. 2021, Switch Transformers,
equations 4 to 6), over all layers and all tokens of a minibatch.

    loss = experts * sum over experts e of f_e * P_e

f_e: number of times that expert e was chosen, P_e: sum of its probabilities, each divided by tokens * layers,
as transformers' `load_balancing_loss_func` computes them for one forward pass. Here they are those of the
whole minibatch, of all microbatches and ranks (Qiu et al. 2025, "Demons in the detail", arXiv:2501.11873): a
sum of the losses of microbatches would balance each of them, and would depend on the split.

f_e has no gradient, so the gradient is a sum over tokens once f_e is known. It is added where a router hands
on its gate weights, not to an output of the model: FSDP2 gathers a layer's weights when the gradient of the
layer's output arrives, and gradient checkpointing computes them again.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from kubealign_services.training.expert_routing import ExpertRouter, RoutingShape


class RouterBalance:
    """Balance of a model's routers in the passes of one minibatch. Inactive until `begin`."""

    def __init__(self, routers: Sequence[ExpertRouter], shape: RoutingShape) -> None:
        """Attach to the routers, before the model is sharded."""
        self.shape = shape
        self._factor: float | None = None
        self._rows = 1
        self._multiplicity: Tensor | None = None
        self._chosen: list[Tensor | None] = [None] * len(routers)
        self._probabilities: list[Tensor | None] = [None] * len(routers)
        self._fractions: Tensor | None = None
        for index, router in enumerate(routers):
            router.module.register_forward_hook(self._hook(index))

    def begin(self, tokens: int, factor: float) -> None:
        """Begin the passes of a minibatch.

        Args:
            tokens: Tokens of the minibatch, of all ranks.
            factor: The gradient is that of the loss times this.
        """
        self._rows = tokens * self.shape.layers
        self._factor = factor
        self._fractions = None

    def end(self) -> None:
        """Return to a forward pass without balance."""
        self._factor = self._multiplicity = self._fractions = None
        self._chosen = [None] * self.shape.layers
        self._probabilities = [None] * self.shape.layers

    def before_pass(self, multiplicity: Tensor) -> None:
        """Prepare for one forward pass.

        Args:
            multiplicity: [U], number of the minibatch's tokens for which each token of the pack stands.
        """
        self._multiplicity = multiplicity

    def counts(self) -> Tensor:
        """Return how often each expert was chosen in the last pass, float64 [experts] on the CPU."""
        return _total(self._chosen)

    def set_fractions(self, counts: Tensor) -> None:
        """Set f_e from the counts of the whole minibatch, before any backward pass."""
        self._fractions = counts / self._rows

    def loss(self) -> float:
        """Return the last pass's part of the minibatch's loss."""
        assert self._fractions is not None
        probabilities = _total(self._probabilities) / self._rows
        return float(self.shape.experts * (self._fractions * probabilities).sum())

    def largest_load(self) -> float:
        """Return the share of the most frequent expert, divided by the share of all experts alike."""
        assert self._fractions is not None
        return float(self._fractions.max() * self.shape.experts / self.shape.top_k)

    def logit_gradient(self, logits: Tensor, multiplicity: Tensor) -> Tensor:
        """Return the gradient of the loss times the factor with respect to a router's logits [U, experts]."""
        assert self._fractions is not None and self._factor is not None
        wide = torch.promote_types(logits.dtype, torch.float32)
        fractions = self._fractions.to(logits.device, wide)
        probabilities = torch.softmax(logits, dim=-1, dtype=wide)
        centred = fractions - (probabilities @ fractions)[:, None]
        weight = self._factor * self.shape.experts / self._rows * multiplicity.to(wide)
        return (weight[:, None] * probabilities * centred).to(logits.dtype)

    def _hook(self, index: int) -> Any:
        def measure(
            _: nn.Module, __: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]
        ) -> tuple[Tensor, Tensor, Tensor] | None:
            if self._factor is None:
                return None
            logits, scores, experts = output
            multiplicity = self._multiplicity
            assert multiplicity is not None
            with torch.no_grad():
                wide = torch.promote_types(logits.dtype, torch.float32)
                weights = multiplicity.double()
                self._chosen[index] = weights.new_zeros(self.shape.experts).index_add(
                    0, experts.flatten(), weights.repeat_interleave(experts.shape[1])
                )
                probabilities = torch.softmax(logits, dim=-1, dtype=wide).double()
                self._probabilities[index] = weights @ probabilities
            balanced: Tensor = _BalanceGradient.apply(scores, logits, multiplicity, self)
            return logits, balanced, experts

        return measure


class _BalanceGradient(torch.autograd.Function):
    """The gate weights, unchanged; the backward pass adds the gradient of the loss to that of the logits."""

    @staticmethod
    def forward(
        ctx: Any, scores: Tensor, logits: Tensor, multiplicity: Tensor, balance: RouterBalance
    ) -> Tensor:
        ctx.save_for_backward(logits, multiplicity)
        ctx.balance = balance
        return scores.view_as(scores)

    @staticmethod
    def backward(ctx: Any, to_scores: Tensor) -> tuple[Tensor, Tensor, None, None]:
        logits, multiplicity = ctx.saved_tensors
        return to_scores, ctx.balance.logit_gradient(logits, multiplicity), None, None


def _total(parts: Sequence[Tensor | None]) -> Tensor:
    present = [part for part in parts if part is not None]
    assert len(present) == len(parts), "a router has not run"
    return torch.stack(present).sum(0).cpu()
