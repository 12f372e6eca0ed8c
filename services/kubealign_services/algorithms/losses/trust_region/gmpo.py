"""GMPO: geometric-mean policy optimisation."""

from dataclasses import dataclass

import torch

from kubealign.spec.algorithms import GMPO
from kubealign_services.algorithms.losses.importance_ratio import response_means
from kubealign_services.algorithms.losses.surrogate import PolicyActions, SurrogateTerms


@dataclass(frozen=True)
class GeometricMeanRatio:
    """Geometric mean of the clipped ratios (Zhao et al. 2025, "Geometric-Mean Policy Optimization",
    arXiv:2507.20673).

    With d_t the log ratio of a token, n the response's tokens and A their mean advantage:

        -A exp(1/n sum of c_t),    c_t = min(d_t, high) where A_t > 0, max(d_t, -low) where A_t < 0

    The response's loss is repeated at each of its tokens: with the aggregation SequenceMean it counts once.
    """

    spec: GMPO

    def __call__(self, actions: PolicyActions) -> SurrogateTerms:
        difference, advantages = actions.log_ratio, actions.advantages
        bounded = torch.where(
            advantages > 0, difference.clamp(max=self.spec.high), difference.clamp(min=-self.spec.low)
        )
        ratio = response_means(bounded, actions.sequence).exp()
        mean_advantages = response_means(advantages, actions.sequence)
        clipped = (bounded != difference).to(advantages.dtype)
        return SurrogateTerms(-ratio * mean_advantages, {"policy/clip_fraction": clipped})
