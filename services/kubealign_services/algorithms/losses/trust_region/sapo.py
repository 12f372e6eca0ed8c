"""SAPO: soft adaptive policy optimisation."""

from dataclasses import dataclass

import torch

from kubealign.spec.algorithms import SAPO
from kubealign_services.algorithms.losses.surrogate import PolicyActions, SurrogateTerms, bounded_ratio


@dataclass(frozen=True)
class SigmoidRatio:
    """Sigmoid of the ratio (Gao et al. 2025, "Soft Adaptive Policy Optimization", arXiv:2511.20347).

        -(4 / tau) sigmoid(tau (r - 1)) A,    tau = positive or negative temperature by the sign of A

    At r = 1 its gradient is that of -r A; it fades on both sides instead of ending at a bound.
    policy/soft_weight is the mean of that fading factor, 4 sigmoid (1 - sigmoid): 1 where the policy has not
    moved.
    """

    spec: SAPO

    def __call__(self, actions: PolicyActions) -> SurrogateTerms:
        ratio, advantages = bounded_ratio(actions.log_ratio), actions.advantages
        temperature = torch.where(
            advantages > 0,
            advantages.new_tensor(self.spec.positive_temperature),
            advantages.new_tensor(self.spec.negative_temperature),
        )
        gate = (temperature * (ratio - 1)).sigmoid()
        weight = 4 * gate.detach() * (1 - gate.detach())
        return SurrogateTerms(-4 / temperature * gate * advantages, {"policy/soft_weight": weight})
