"""Estimates of KL(policy || reference) from the policy's own samples, and the adaptive KL coefficient."""

import torch
from torch import Tensor

from kubealign.spec.algorithms import KLEstimator


def estimate_kl(logprobs: Tensor, reference: Tensor, estimator: KLEstimator) -> Tensor:
    """Compute Schulman's estimators ("Approximating KL divergence", 2020), element by element, with d = log p
    - log p_ref.

        K1: d                   unbiased, of either sign
        K2: d^2 / 2             biased, never negative
        K3: exp(-d) - 1 + d     unbiased, never negative

    Args:
        logprobs: Nats.
        reference: Same shape and dtype.
    """
    difference = logprobs - reference
    if estimator is KLEstimator.K1:
        return difference
    if estimator is KLEstimator.K2:
        return difference.square() / 2
    return torch.expm1(-difference) + difference


def kl_loss(logprobs: Tensor, reference: Tensor, estimator: KLEstimator) -> Tensor:
    """Compute the KL estimate as a loss term, with a gradient through `logprobs` that descends a divergence.

    K2's gradient, d * grad log p, is on average that of KL(policy || reference). K3's, (1 - exp(-d)) *
    grad log p, is on average that of KL(reference || policy), with less variance (the choice of
    DeepSeekMath). K1's own gradient, grad log p, is zero on average and has no effect: the value is K1's
    and the gradient K2's.
    """
    if estimator is KLEstimator.K1:
        squared = estimate_kl(logprobs, reference, KLEstimator.K2)
        return estimate_kl(logprobs, reference, KLEstimator.K1).detach() + squared - squared.detach()
    return estimate_kl(logprobs, reference, estimator)


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
