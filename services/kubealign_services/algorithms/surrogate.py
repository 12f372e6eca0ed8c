"""The clipped surrogate of proximal policy optimisation."""

from dataclasses import dataclass

import torch
from torch import Tensor

# exp() of more than 88 overflows fp32, and the clipped branch's zero gradient times infinity would be NaN.
LOG_RATIO_BOUND = 20.0


@dataclass(frozen=True)
class Surrogate:
    """One entry for each action. loss has a gradient, the others none. clipped: 1.0 where the clip took the
    gradient. approximate_kl: of the old policy from the new one, exp(d) - 1 - d with d the log-ratio
    (Schulman 2020)."""

    loss: Tensor
    clipped: Tensor
    ratio: Tensor
    approximate_kl: Tensor


def clipped_surrogate(log_ratio: Tensor, advantages: Tensor, low: float, high: float) -> Surrogate:
    """Schulman et al. 2017, eq. 7, with bounds of their own on either side (Yu et al. 2025), as a loss:

        -min(r A, clip(r, 1 - low, 1 + high) A),    r = exp(log_ratio)

    log_ratio, advantages: same shape: tokens, or sequences where the whole response is one action.
    """
    bounded = log_ratio.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
    ratio = bounded.exp()
    free = ratio * advantages
    held = ratio.clamp(1 - low, 1 + high) * advantages
    return Surrogate(
        loss=-torch.minimum(free, held),
        clipped=(held < free).to(ratio.dtype),
        ratio=ratio.detach(),
        approximate_kl=(torch.expm1(bounded) - bounded).detach(),
    )
