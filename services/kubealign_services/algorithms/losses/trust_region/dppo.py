"""DPPO: divergence proximal policy optimisation."""

from dataclasses import dataclass

from kubealign.spec.algorithms import DPPO
from kubealign_services.algorithms.losses.surrogate import PolicyActions, SurrogateTerms, bounded_ratio


@dataclass(frozen=True)
class DivergenceMask:
    """Mask by the change of a token's probability (Qi et al. 2026, "Rethinking the Trust Region in LLM
    Reinforcement Learning", arXiv:2602.04879, with the binary total variation; prime-rl's default).

        -M r A,    M = 0 where A > 0 and p - p_old > high, or A < 0 and p_old - p > low; else 1

    A masked token stays counted in the mean.
    """

    spec: DPPO

    def __call__(self, actions: PolicyActions) -> SurrogateTerms:
        ratio, advantages = bounded_ratio(actions.log_ratio), actions.advantages
        probability = actions.logprobs.detach().exp()
        change = probability - (actions.logprobs - actions.log_ratio).detach().exp()
        high = (advantages > 0) & (change > self.spec.high)
        low = (advantages < 0) & (change < -self.spec.low)
        masked = high | low
        loss = (-ratio * advantages).masked_fill(masked, 0.0)
        shares = {
            "policy/clip_fraction": masked.to(ratio.dtype),
            "policy/clip_high_fraction": high.to(ratio.dtype),
            "policy/clip_low_fraction": low.to(ratio.dtype),
        }
        return SurrogateTerms(loss, shares)
