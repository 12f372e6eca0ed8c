"""Surrogate losses of the policy's actions, before weighting and aggregation."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from kubealign.spec.algorithms import Clip
from kubealign_services.batch.packed import Batch

# exp() of more than 88 overflows fp32, and the clipped branch's zero gradient times infinity would be NaN.
LOG_RATIO_BOUND = 20.0


@dataclass(frozen=True)
class PolicyActions:
    """Actions of the policy, all [N], one entry per response token.

    logprobs: of the trained policy, with gradient. log_ratio: to the old policy, with gradient.
    advantages: without. sequence: int64, response index of each token, from 0. selected: bool, the tokens
    that a `SelectiveSurrogate` selected; None for other surrogates.
    """

    logprobs: Tensor
    log_ratio: Tensor
    advantages: Tensor
    sequence: Tensor
    selected: Tensor | None = None


@dataclass(frozen=True)
class SurrogateTerms:
    """Surrogate losses.

    loss: [N], with gradient. shares: metric -> [N], 1.0 where an entry counts for the metric.
    """

    loss: Tensor
    shares: dict[str, Tensor]


class Surrogate(Protocol):
    """Maps actions and their advantages to losses whose descent makes good actions likelier."""

    def __call__(self, actions: PolicyActions) -> SurrogateTerms: ...


@runtime_checkable
class SelectiveSurrogate(Surrogate, Protocol):
    """A surrogate with another loss for some tokens, selected by comparison with the rest of the minibatch.

    The selection is made before the passes, so that it does not depend on the split into microbatches.
    """

    def select(self, minibatch: Batch, counted: Tensor) -> Tensor:
        """Return the selected tokens, bool [T].

        Reads the token columns advantages and old_logprobs.

        Args:
            counted: Response tokens that are trained on, bool [T]; no other token is selected.
        """


def bounded_ratio(log_ratio: Tensor) -> Tensor:
    """Compute exp(log_ratio), kept finite."""
    return log_ratio.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND).exp()


def ratio_metrics(log_ratio: Tensor, shares: Tensor) -> dict[str, Tensor]:
    """Return the mean of the ratio r, its variance around 1, and KL(old || new) as r - 1 - log r (K3).

    Args:
        log_ratio: [N], bounded like the ratio.
        shares: [N], share of each token in the means.
    """
    bounded = log_ratio.detach().clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
    difference = bounded.expm1()
    return {
        "policy/ratio_mean": (shares * bounded.exp()).sum(),
        "policy/ratio_variance": (shares * difference.square()).sum(),
        "policy/approx_kl": (shares * (difference - bounded)).sum(),
    }


@dataclass(frozen=True)
class ClippedRatio:
    """Clipped ratio of Schulman et al. 2017, eq.

    7, with separate bounds on either side (Yu et al. 2025), as a loss:

        -min(r A, clip(r, 1 - low, 1 + high) A),    r = exp(log_ratio)

    With `dual` (Ye et al. 2020, eq. 5), where A < 0 the loss is at most dual |A|: a response that is far
    likelier under the policy than under the old one no longer has a gradient.
    """

    clip: Clip

    def __call__(self, actions: PolicyActions) -> SurrogateTerms:
        ratio, advantages = bounded_ratio(actions.log_ratio), actions.advantages
        unclipped = ratio * advantages
        bounded = ratio.clamp(1 - self.clip.low, 1 + self.clip.high) * advantages
        loss = -torch.minimum(unclipped, bounded)
        clipped = bounded < unclipped
        shares = {
            "policy/clip_low_fraction": (clipped & (advantages < 0)).to(ratio.dtype),
            "policy/clip_high_fraction": (clipped & (advantages > 0)).to(ratio.dtype),
        }
        if self.clip.dual is not None:
            limit = -self.clip.dual * advantages
            beyond = (advantages < 0) & (loss > limit)
            loss = torch.where(beyond, limit, loss)
            shares["policy/clip_dual_fraction"] = beyond.to(ratio.dtype)
            clipped = clipped | beyond
        return SurrogateTerms(loss, {"policy/clip_fraction": clipped.to(ratio.dtype), **shares})


@dataclass(frozen=True)
class BoundedWeight:
    """Bounded weight of MiniMax 2025, eq.

    4 and 5: the ratio is a weight without gradient, clipped to floor and cap, so that every action keeps
    its own gradient:

        -clip(r, floor, cap) A log p
    """

    floor: float
    cap: float

    def __call__(self, actions: PolicyActions) -> SurrogateTerms:
        ratio = bounded_ratio(actions.log_ratio.detach())
        weight = ratio.clamp(self.floor, self.cap)
        loss = -weight * actions.advantages * actions.logprobs
        return SurrogateTerms(loss, {"policy/clip_fraction": (weight != ratio).to(ratio.dtype)})


@dataclass(frozen=True)
class LogLikelihood:
    """Policy gradient loss of Williams 1992: -A log p."""

    def __call__(self, actions: PolicyActions) -> SurrogateTerms:
        return SurrogateTerms(-actions.advantages * actions.logprobs, {})
