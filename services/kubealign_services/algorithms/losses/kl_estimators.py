"""Estimates of KL(policy || reference) from the policy's own samples, and the adaptive KL coefficient."""

import torch
from torch import Tensor

from kubealign.spec.algorithms import KLEstimator, OnPolicySpec
from kubealign_services.algorithms.losses.surrogate import bounded_ratio

#: Bounds of K3's log ratio and of its estimate, in nats, as in verl, NeMo-RL and slime: exp(50) would be the
#: only term of a mean, and exp(89) is infinite in fp32.
K3_LOG_RATIO_BOUND = 20.0
K3_BOUND = 10.0


def estimate_kl(logprobs: Tensor, reference: Tensor, estimator: KLEstimator) -> Tensor:
    """Compute Schulman's estimators ("Approximating KL divergence", 2020), element by element, with d = log p
    - log p_ref.

        K1: d                   unbiased, of either sign
        K2: d^2 / 2             biased, never negative
        K3: exp(-d) - 1 + d     unbiased, never negative; bounded, see `estimate_k3`
        Absolute: |d|           a penalty on either deviation, of the first order; not one of Schulman's

    Args:
        logprobs: Nats.
        reference: Same shape and dtype.
    """
    difference = logprobs - reference
    if estimator is KLEstimator.K1:
        return difference
    if estimator is KLEstimator.K2:
        return difference.square() / 2
    if estimator is KLEstimator.ABSOLUTE:
        return difference.abs()
    return estimate_k3(difference)


def estimate_k3(difference: Tensor) -> Tensor:
    """Compute K3 from d = log p - log p_ref, element by element: exp(-d) - 1 + d, kept finite.

    d is clamped to +-K3_LOG_RATIO_BOUND and the estimate to K3_BOUND, so that neither has a gradient beyond
    its bound. Within the bounds (d from -2.61 to 11) the estimate is exact.

    Args:
        difference: Nats.
    """
    bounded = difference.clamp(-K3_LOG_RATIO_BOUND, K3_LOG_RATIO_BOUND)
    return (torch.expm1(-bounded) + bounded).clamp(max=K3_BOUND)


def is_clamped(estimate: Tensor, estimator: KLEstimator) -> Tensor:
    """Return where an estimate of `estimate_kl` is at K3's bound, bool, in its shape.

    The bound of the log ratio need not be asked for: beyond it the estimate is at its own.
    """
    if estimator is KLEstimator.K3:
        return estimate >= K3_BOUND
    return torch.zeros_like(estimate, dtype=torch.bool)


def kl_loss(logprobs: Tensor, reference: Tensor, estimator: KLEstimator) -> Tensor:
    """Compute the KL estimate as a loss term, with a gradient through `logprobs` that descends a divergence.

    K2's gradient, d * grad log p, is on average that of KL(policy || reference). K3's, (1 - exp(-d)) *
    grad log p, is on average that of KL(reference || policy), with less variance (the choice of
    DeepSeekMath). Absolute's is sign(d) * grad log p. K1's own gradient, grad log p, is zero on average and
    has no effect: the value is K1's and the gradient K2's.
    """
    if estimator is KLEstimator.K1:
        squared = estimate_kl(logprobs, reference, KLEstimator.K2)
        return estimate_kl(logprobs, reference, KLEstimator.K1).detach() + squared - squared.detach()
    return estimate_kl(logprobs, reference, estimator)


def corrected_kl_loss(logprobs: Tensor, reference: Tensor, estimator: KLEstimator, sampled: Tensor) -> Tensor:
    """Compute the KL estimate as a loss term for samples of another policy, element by element.

        exp(log p - log p_sampled) * estimate

    With K1 and K3 its expected value is KL(policy || reference) and its expected gradient that divergence's
    own, whichever policy sampled (DeepSeek-V3.2, 2025, section 3.1; TRL's use_bias_correction_kl, NeMo-RL).

    Args:
        logprobs: Nats, with gradient.
        reference: Same shape and dtype.
        sampled: Same shape and dtype, of the policy that sampled; without gradient.
    """
    return bounded_ratio(logprobs - sampled) * estimate_kl(logprobs, reference, estimator)


def adapt_coefficient(
    coefficient: float, observed: float, sequences: int, target: float, horizon: float
) -> float:
    """Return the adaptive coefficient after a step of `sequences` sequences (Ziegler et al. 2019, section
    2.2).

        e = clip((observed - target) / target, -0.2, 0.2)        coefficient * (1 + e * sequences /
        horizon)

    Args:
        observed: Nats per sequence.
        target: Nats per sequence.
        horizon: Sequences. The factor is kept above 0 where a step is longer than the horizon.
    """
    error = min(max((observed - target) / target, -0.2), 0.2)
    return coefficient * max(1 + error * sequences / horizon, 0.1)


def policy_kl(new: Tensor, sampled: Tensor, reference: Tensor, spec: OnPolicySpec) -> Tensor:
    """Return the estimate of KL(policy || reference) that the policy's loss contains, [N], with gradient.

    Args:
        new: log p [N], with gradient.
        sampled: log-probabilities of the policy that sampled, [N], for the spec's correction.
        reference: [N].
    """
    if not spec.corrects_kl:
        return kl_loss(new, reference, spec.kl.estimator)
    return corrected_kl_loss(new, reference, spec.kl.estimator, sampled)
