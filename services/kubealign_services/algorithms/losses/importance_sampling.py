"""Importance weights for samples from another policy than the trainer's: an engine with other rounding, or
older weights.
"""

from dataclasses import dataclass

from torch import Tensor

from kubealign.spec.algorithms import (
    ImportanceCorrection,
    ImportanceLevel,
    OffPolicyMask,
    OutOfBoundsWeights,
)
from kubealign_services.algorithms.losses.importance_ratio import response_means, response_sums
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

    With sequence_mask, 0 for the tokens of a response whose geometric mean is outside its bounds (NeMo-RL's
    and OpenRLHF's seq-mask-tis). Truncate: clip(w, low, high). Mask: w within the bounds, else 0.

    Args:
        difference: d [N], without gradient, of complete responses.
        sequence: int64 [N], response index of each token, from 0, on the same device.
    """
    log_weights = difference
    if spec.level is ImportanceLevel.SEQUENCE:
        log_weights = response_sums(difference, sequence)
    elif spec.level is ImportanceLevel.SEQUENCE_MEAN:
        log_weights = response_means(difference, sequence)
    raw = bounded_ratio(log_weights)
    bounded = raw.clamp(spec.lower_bound, spec.high)
    outside = bounded != raw
    if spec.outside is OutOfBoundsWeights.MASK:
        bounded = bounded.masked_fill(outside, 0.0)
    if spec.sequence_mask is not None:
        geometric_mean = bounded_ratio(response_means(difference, sequence))
        masked = (geometric_mean < spec.sequence_mask.low) | (geometric_mean > spec.sequence_mask.high)
        bounded, outside = bounded.masked_fill(masked, 0.0), outside | masked
    return ImportanceWeights(applied=bounded, raw=raw, outside=outside.to(raw.dtype))


def off_policy_mask(
    new: Tensor, sampled: Tensor, advantages: Tensor, sequence: Tensor, spec: OffPolicyMask
) -> Tensor:
    """Return where the off-policy mask excludes a token, bool [N] (DeepSeek-V3.2, 2025, section 3.1; TRL's
    off_policy_mask_threshold).

    A < 0 and the response's mean of log p_sampled - log p is above the threshold. No gradient.

    Args:
        new: log p [N].
        sampled: log p_sampled [N], under the whole softmax.
        advantages: [N].
        sequence: int64 [N], response index of each token, from 0.
    """
    mean = response_means((sampled - new).detach(), sequence)
    return (advantages < 0) & (mean > spec.threshold)


def behaviour_kl(old: Tensor, behaviour: Tensor) -> Tensor:
    """Estimate KL(behaviour || old) from the behaviour policy's own samples, entry by entry, by K3.

    r - 1 - log r with r = p_old / p_behaviour, bounded as in `estimate_k3`. No gradient.
    """
    return estimate_k3((behaviour - old).detach())
