"""Importance weights for samples from another policy than the trainer's: an engine with other rounding, or
older weights.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from kubealign.spec.algorithms import ImportanceCorrection, ImportanceLevel, OutOfBoundsWeights
from kubealign_services.algorithms.losses.importance_ratio import response_sums
from kubealign_services.algorithms.losses.kl_estimators import estimate_k3
from kubealign_services.algorithms.losses.surrogate import bounded_ratio


@dataclass(frozen=True)
class ImportanceWeights:
    """Importance weights, all [N], one entry per response token.

    applied: factor of the policy loss. raw: before the bounds. outside: 1.0 where the bounds changed the
    weight.
    """

    applied: Tensor
    raw: Tensor
    outside: Tensor


def importance_weights(difference: Tensor, sequence: Tensor, spec: ImportanceCorrection) -> ImportanceWeights:
    """Compute w = p_old / p_engine: the proximal policy over the behaviour policy (Hilton et al. 2022; Fu
    et al.
    2025, "AReaL", eq. 5; for engine and trainer Yao et al. 2025).

        Token           exp(d_t),    d_t = log p_old - log p_engine
        Sequence        exp(sum of d over the response)
        SequenceMean    exp(mean of d over the response)

    Both are probabilities under the whole softmax at the sampling temperature.

    Truncate: clip(w, low, high). Mask: w within the bounds, else 0.

    Args:
        difference: d [N], without gradient, of complete responses.
        sequence: int64 [N], response index of each token, from 0, on the same device.
    """
    if spec.level is not ImportanceLevel.TOKEN:
        total = response_sums(difference, sequence)
        if spec.level is ImportanceLevel.SEQUENCE_MEAN:
            total = total / response_sums(torch.ones_like(total), sequence)
        difference = total
    raw = bounded_ratio(difference)
    bounded = raw.clamp(spec.lower_bound, spec.high)
    outside = bounded != raw
    if spec.outside is OutOfBoundsWeights.MASK:
        bounded = bounded.where(~outside, bounded.new_zeros(()))
    return ImportanceWeights(applied=bounded, raw=raw, outside=outside.to(raw.dtype))


def behaviour_kl(old: Tensor, behaviour: Tensor) -> Tensor:
    """Estimate KL(behaviour || old) from the behaviour policy's own samples, entry by entry, by K3.

    r - 1 - log r with r = p_old / p_behaviour, bounded as in `estimate_k3`. No gradient.
    """
    return estimate_k3((behaviour - old).detach())
