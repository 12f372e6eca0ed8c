"""KL estimators and the adaptive coefficient."""

import math

import pytest
import torch

from kubealign.spec.algorithms import KLEstimator
from kubealign_services.algorithms.losses.kl_estimators import (
    adapt_coefficient,
    corrected_kl_loss,
    estimate_kl,
    is_clamped,
    kl_loss,
)

# p = 1/2 and p_ref = 1/4: d = log 2 = 0.693147...; then p = 1/4 and p_ref = 1/2: d = -log 2.
LOGPROBS = torch.tensor([math.log(1 / 2), math.log(1 / 4)], dtype=torch.float64)
REFERENCE = torch.tensor([math.log(1 / 4), math.log(1 / 2)], dtype=torch.float64)


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [
        (KLEstimator.K1, [0.6931471805599453, -0.6931471805599453]),
        # (log 2)^2 / 2 = 0.4804530139 / 2
        (KLEstimator.K2, [0.24022650695910072, 0.24022650695910072]),
        # exp(-log 2) - 1 + log 2 = 0.5 - 1 + 0.6931471806;   exp(log 2) - 1 - log 2 = 2 - 1 - 0.6931471806
        (KLEstimator.K3, [0.1931471805599453, 0.3068528194400547]),
        (KLEstimator.ABSOLUTE, [0.6931471805599453, 0.6931471805599453]),
    ],
)
def test_estimators_by_hand(estimator: KLEstimator, expected: list[float]) -> None:
    assert estimate_kl(LOGPROBS, REFERENCE, estimator).tolist() == pytest.approx(expected, abs=1e-12)
    assert kl_loss(LOGPROBS, REFERENCE, estimator).tolist() == pytest.approx(expected, abs=1e-12)


def bounded_k3(difference: float) -> tuple[float, float]:
    """Return value and derivative of verl's low_var_kl (core_algos.py), written out for one token."""
    bounded = min(max(difference, -20.0), 20.0)
    value = math.exp(-bounded) - 1 + bounded
    has_gradient = abs(difference) <= 20 and value <= 10
    return min(value, 10.0), (1 - math.exp(-bounded)) if has_gradient else 0.0


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_k3_is_bounded_in_value_and_gradient(dtype: torch.dtype) -> None:
    differences = [-100.0, -50.0, -20.0, -2.75, -2.5, -1.0, 0.0, 4.0, 10.0, 12.0, 50.0, 100.0]
    logprobs = torch.tensor(differences, dtype=dtype, requires_grad=True)
    reference = torch.zeros(len(differences), dtype=dtype)
    loss = kl_loss(logprobs, reference, KLEstimator.K3)
    (gradient,) = torch.autograd.grad(loss.sum(), logprobs)
    expected = torch.tensor([bounded_k3(each) for each in differences], dtype=torch.float64)
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 0.1}[dtype]
    torch.testing.assert_close(loss.double().detach(), expected[:, 0], atol=tolerance, rtol=0)
    torch.testing.assert_close(gradient.double(), expected[:, 1], atol=tolerance, rtol=0)
    clamped = is_clamped(loss.detach(), KLEstimator.K3)
    assert clamped.tolist() == [abs(each) > 20 or bounded_k3(each)[0] == 10 for each in differences]
    assert not is_clamped(estimate_kl(logprobs, reference, KLEstimator.K2), KLEstimator.K2).any()


def test_the_absolute_penalty_pulls_each_token_towards_the_reference() -> None:
    logprobs = LOGPROBS.clone().requires_grad_()
    loss = kl_loss(logprobs, REFERENCE, KLEstimator.ABSOLUTE)
    (gradient,) = torch.autograd.grad(loss.sum(), logprobs)
    assert gradient.tolist() == [1.0, -1.0]
    assert not is_clamped(100 * loss.detach(), KLEstimator.ABSOLUTE).any()


def distributions() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    policy = torch.randn(5, dtype=torch.float64, generator=generator, requires_grad=True)
    reference = torch.randn(5, dtype=torch.float64, generator=generator).log_softmax(0)
    return policy, reference


@pytest.mark.parametrize("estimator", [KLEstimator.K1, KLEstimator.K3])
def test_k1_and_k3_are_unbiased(estimator: KLEstimator) -> None:
    logits, reference = distributions()
    policy = logits.detach().log_softmax(0)
    exact = (policy.exp() * (policy - reference)).sum()
    expected = (policy.exp() * estimate_kl(policy, reference, estimator)).sum()
    assert float(expected) == pytest.approx(float(exact), abs=1e-12)


@pytest.mark.parametrize(
    ("estimator", "forward"), [(KLEstimator.K1, False), (KLEstimator.K2, False), (KLEstimator.K3, True)]
)
def test_the_loss_descends_the_divergence_that_is_documented(estimator: KLEstimator, forward: bool) -> None:
    """The mean gradient over all samples, each held fixed, equals autograd on the exact divergence."""
    logits, reference = distributions()
    policy = logits.log_softmax(0)
    (mean,) = torch.autograd.grad(
        (policy.exp().detach() * kl_loss(policy, reference, estimator)).sum(), logits
    )
    policy = logits.log_softmax(0)
    exact = (
        (reference.exp() * (reference - policy)).sum()
        if forward
        else (policy.exp() * (policy - reference)).sum()
    )
    (expected,) = torch.autograd.grad(exact, logits)
    torch.testing.assert_close(mean, expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize("estimator", [KLEstimator.K1, KLEstimator.K3])
def test_the_corrected_loss_has_the_divergence_s_value_and_gradient_under_samples_of_another_policy(
    estimator: KLEstimator,
) -> None:
    """Mean over the other policy's distribution against autograd on KL(policy || reference)."""
    logits, reference = distributions()
    generator = torch.Generator().manual_seed(8)
    sampled = torch.randn(5, dtype=torch.float64, generator=generator).log_softmax(0)
    policy = logits.log_softmax(0)
    mean = (sampled.exp() * corrected_kl_loss(policy, reference, estimator, sampled)).sum()
    (gradient,) = torch.autograd.grad(mean, logits)
    policy = logits.log_softmax(0)
    exact = (policy.exp() * (policy - reference)).sum()
    (expected,) = torch.autograd.grad(exact, logits)
    assert float(mean.detach()) == pytest.approx(float(exact.detach()), abs=1e-12)
    torch.testing.assert_close(gradient, expected, atol=1e-12, rtol=0)
    uncorrected = (sampled.exp() * kl_loss(logits.log_softmax(0), reference, estimator)).sum()
    (wrong,) = torch.autograd.grad(uncorrected, logits)
    assert (wrong - expected).abs().max() > 0.05


@pytest.mark.parametrize(
    ("observed", "expected"),
    [
        # target 6, 250 sequences of a horizon of 1000: a quarter of the error.
        (6.6, 0.1 * (1 + 0.1 * 0.25)),  # error (6.6 - 6) / 6 = 0.1
        (60.0, 0.1 * (1 + 0.2 * 0.25)),  # clipped to 0.2
        (0.0, 0.1 * (1 - 0.2 * 0.25)),  # clipped to -0.2
        (6.0, 0.1),
    ],
)
def test_adaptive_coefficient_by_hand(observed: float, expected: float) -> None:
    assert adapt_coefficient(0.1, observed, 250, 6.0, 1000.0) == pytest.approx(expected, abs=1e-12)


def test_the_coefficient_stays_positive_where_a_step_is_longer_than_the_horizon() -> None:
    assert adapt_coefficient(0.1, 0.0, 10_000, 6.0, 100.0) == pytest.approx(0.01)
