"""The clipped surrogate and the clipped value loss, entry by entry."""

import math

import pytest
import torch

from kubealign.spec.algorithms import Clip
from kubealign_services.algorithms.losses.surrogate import ClippedRatio, PolicyActions, SurrogateTerms
from kubealign_services.algorithms.losses.value_objective import clipped_value_loss, explained_variance


def float64(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def surrogate(log_ratio: torch.Tensor, advantages: torch.Tensor, clip: Clip) -> SurrogateTerms:
    return ClippedRatio(clip)(PolicyActions(log_ratio, log_ratio, advantages, torch.arange(len(log_ratio))))


# Clip range 0.8 to 1.3 (low 0.2, high 0.3); dual 2.
SURROGATES = [
    # ratio, advantage, loss, clipped below, above, dual, gradient of the loss by the log-ratio (-r A where
    # the ratio is free, else 0)
    (1.0, 2.0, -2.0, 0, 0, 0, -2.0),
    (1.5, 2.0, -2.6, 0, 1, 0, 0.0),  # min(3, 1.3 * 2)
    (1.5, -2.0, 3.0, 0, 0, 0, 3.0),  # min(-3, -2.6)
    (0.5, 2.0, -1.0, 0, 0, 0, -1.0),  # min(1, 1.6)
    (0.5, -2.0, 1.6, 1, 0, 0, 0.0),  # min(-1, -1.6)
    (1.25, 2.0, -2.5, 0, 0, 0, -2.5),  # within the upper bound, outside the lower one mirrored
    (1.9, -2.0, 3.8, 0, 0, 0, 3.8),  # within the dual bound
    (2.5, -2.0, 4.0, 0, 0, 1, 0.0),  # max(min(-5, -2.6), 2 * -2)
    (2.5, 2.0, -2.6, 0, 1, 0, 0.0),  # the dual bound is for advantages below 0 alone
]


@pytest.mark.parametrize(("ratio", "advantage", "loss", "below", "above", "dual", "gradient"), SURROGATES)
def test_surrogate_by_hand(
    ratio: float, advantage: float, loss: float, below: int, above: int, dual: int, gradient: float
) -> None:
    log_ratio = float64(math.log(ratio)).requires_grad_()
    terms = surrogate(log_ratio, float64(advantage), Clip(low=0.2, high=0.3, dual=2.0))
    terms.loss.sum().backward()  # type: ignore[no-untyped-call]
    assert float(terms.loss.detach()) == pytest.approx(loss, abs=1e-12)
    assert {name: float(value) for name, value in terms.shares.items()} == {
        "policy/clip_fraction": below + above + dual,
        "policy/clip_low_fraction": below,
        "policy/clip_high_fraction": above,
        "policy/clip_dual_fraction": dual,
    }
    assert log_ratio.grad is not None
    assert float(log_ratio.grad) == pytest.approx(gradient, abs=1e-12)


def test_without_a_dual_bound_a_bad_action_s_loss_grows_with_its_ratio() -> None:
    log_ratio = float64(math.log(100)).requires_grad_()
    terms = surrogate(log_ratio, float64(-2.0), Clip())
    terms.loss.sum().backward()  # type: ignore[no-untyped-call]
    assert float(terms.loss.detach()) == pytest.approx(200)
    assert "policy/clip_dual_fraction" not in terms.shares
    assert log_ratio.grad is not None
    assert float(log_ratio.grad) == pytest.approx(200)


def test_extreme_ratio_gives_no_nan() -> None:
    log_ratio = torch.tensor([1000.0, -1000.0, 1000.0], requires_grad=True)
    terms = surrogate(log_ratio, torch.tensor([1.0, 1.0, -1.0]), Clip(dual=3.0))
    terms.loss.sum().backward()  # type: ignore[no-untyped-call]
    assert log_ratio.grad is not None
    assert torch.isfinite(log_ratio.grad).all()
    assert torch.isfinite(terms.loss).all()


VALUES = [
    # value, old, return, loss, clipped, gradient; clip 0.2
    (1.0, 1.0, 2.0, 0.5, 0, -1.0),  # 1/2 (1 - 2)^2
    (1.5, 1.0, 2.0, 0.32, 1, 0.0),  # 1/2 max(0.25, (1.2 - 2)^2 = 0.64)
    (0.5, 1.0, 2.0, 1.125, 0, -1.5),  # 1/2 max(2.25, (0.8 - 2)^2 = 1.44)
    (1.1, 1.0, 2.0, 0.405, 0, -0.9),  # within the bound: 1/2 * 0.81
]


@pytest.mark.parametrize(("value", "old", "target", "loss", "clipped", "gradient"), VALUES)
def test_value_loss_by_hand(
    value: float, old: float, target: float, loss: float, clipped: int, gradient: float
) -> None:
    values = float64(value).requires_grad_()
    terms, bound = clipped_value_loss(values, float64(old), float64(target), 0.2)
    terms.sum().backward()  # type: ignore[no-untyped-call]
    assert float(terms.detach()) == pytest.approx(loss, abs=1e-12)
    assert float(bound) == clipped
    assert values.grad is not None
    assert float(values.grad) == pytest.approx(gradient, abs=1e-12)


def test_a_value_within_the_bound_is_not_counted_as_clipped_by_rounding() -> None:
    # In fp32, V_old + (V - V_old) is not always V, and may be farther from the return.
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(100_000, generator=generator)
    old = values + 0.3 * torch.rand(100_000, generator=generator) - 0.15
    _, bound = clipped_value_loss(values, old, torch.zeros(100_000), 0.2)
    assert not bound.any()


def test_value_loss_without_a_clip_is_half_the_squared_error() -> None:
    terms, bound = clipped_value_loss(float64(1.5), float64(1.0), float64(2.0), None)
    assert (float(terms), float(bound)) == (0.125, 0)


def test_explained_variance_by_hand() -> None:
    # Returns 1, 2, 3: variance 2/3. Errors 0, 0, 1: mean 1/3, variance 2/9. 1 - (2/9) / (2/3) = 2/3. The
    # entry 99 is masked.
    mask = torch.tensor([1, 0, 1, 1])
    assert explained_variance(float64(1, 0, 2, 2), float64(1, 99, 2, 3), mask) == pytest.approx(2 / 3)
    assert explained_variance(float64(5, 0, 5, 5), float64(1, 99, 2, 3), mask) == pytest.approx(0)
    assert explained_variance(float64(3, 0, 2, 1), float64(1, 99, 2, 3), mask) == pytest.approx(-3)


def test_explained_variance_of_constant_returns_is_zero() -> None:
    assert explained_variance(float64(1, 2), float64(3, 3), torch.ones(2)) == 0
