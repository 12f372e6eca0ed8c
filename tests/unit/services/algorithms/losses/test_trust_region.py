"""Trust regions besides the clip range, against the peers' formulas written as loops over tokens."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from kubealign.spec import algorithms as spec
from kubealign_services.algorithms.factory import make_algorithm
from kubealign_services.algorithms.losses.surrogate import PolicyActions
from kubealign_services.algorithms.losses.trust_region import make_trust_region

# Two responses, of three and two tokens. Old probabilities, moves of their logarithms, advantages.
OLD = [0.5, 0.02, 0.9, 0.3, 0.4]
MOVES = [0.6, 0.9, -0.05, -1.2, 0.3]
ADVANTAGES = [1.0, 2.0, -1.0, -2.0, -0.5]
SEQUENCE = [0, 0, 0, 1, 1]


def sapo(moves: list[Tensor]) -> list[Tensor]:
    """TRL's get_sapo_token_loss (grpo_trainer.py): sigmoid(t (r - 1)) 4 / t, t 1.0 or 1.05."""
    losses = []
    for move, advantage in zip(moves, ADVANTAGES, strict=True):
        temperature = 1.0 if advantage > 0 else 1.05
        losses.append(-advantage * torch.sigmoid(temperature * (move.exp() - 1)) * 4 / temperature)
    return losses


def gmpo(moves: list[Tensor]) -> list[Tensor]:
    """verl's compute_policy_loss_geo_mean (core_algos.py): sign(A) min(sign(A) d, sign(A) clip(d)), then exp
    of its mean over the response, times the mean advantage."""
    losses = []
    for response in SEQUENCE:
        tokens = [t for t, own in enumerate(SEQUENCE) if own == response]
        total, advantage = torch.zeros((), dtype=torch.float64), 0.0
        for t in tokens:
            sign = math.copysign(1.0, ADVANTAGES[t])
            total = total + sign * torch.minimum(sign * moves[t], sign * moves[t].clamp(-0.4, 0.4))
            advantage += ADVANTAGES[t]
        losses.append(-(advantage / len(tokens)) * (total / len(tokens)).exp())
    return losses


def dppo(moves: list[Tensor]) -> list[Tensor]:
    """prime-rl's DPPO mask (loss.py): by the difference of the probabilities, 0.2 on either side."""
    losses = []
    for old, move, advantage in zip(OLD, moves, ADVANTAGES, strict=True):
        change = old * math.exp(float(move.detach())) - old
        masked = change > 0.2 if advantage > 0 else change < -0.2
        losses.append(move * 0 if masked else -advantage * move.exp())
    return losses


@pytest.mark.parametrize("peer", [sapo, gmpo, dppo], ids=lambda peer: peer.__name__)
def test_value_and_gradient_equal_the_peer_s(peer: Callable[[list[Tensor]], list[Tensor]]) -> None:
    moves = torch.tensor(MOVES, dtype=torch.float64, requires_grad=True)
    expected = torch.stack(peer(list(moves.unbind())))
    (expected_gradient,) = torch.autograd.grad(expected.sum(), moves)
    logprobs = torch.tensor(OLD, dtype=torch.float64).log() + moves
    actions = PolicyActions(
        logprobs, moves, torch.tensor(ADVANTAGES, dtype=torch.float64), torch.tensor(SEQUENCE)
    )
    terms = make_trust_region(spec.TrustRegion.model_validate({peer.__name__: {}}), spec.Clip())(actions)
    torch.testing.assert_close(terms.loss, expected, atol=1e-12, rtol=0)
    (gradient,) = torch.autograd.grad(terms.loss.sum(), moves)
    torch.testing.assert_close(gradient, expected_gradient, atol=1e-12, rtol=0)


def test_dppo_keeps_a_rare_token_and_masks_a_likely_one() -> None:
    """0.02 to 0.05 is a ratio of 2.5, which a clip range of 0.2 stops; 0.5 to 0.91 is a large change."""
    region = make_trust_region(spec.TrustRegion(dppo=spec.DPPO()), spec.Clip())
    old, new = torch.tensor([0.02, 0.5]).log(), torch.tensor([0.05, 0.91]).log()
    terms = region(PolicyActions(new, new - old, torch.ones(2), torch.arange(2)))
    assert terms.loss.tolist() == pytest.approx([-2.5, 0])
    assert terms.shares["policy/clip_high_fraction"].tolist() == [0, 1]


@pytest.mark.parametrize("member", list(spec.TrustRegion.model_fields))
def test_the_gradient_is_the_policy_gradient_where_the_policy_has_not_moved(member: str) -> None:
    zero = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    advantages = torch.full((3,), -0.7, dtype=torch.float64)
    region = make_trust_region(spec.TrustRegion.model_validate({member: {}}), spec.Clip())
    unselected = torch.zeros(3, dtype=torch.bool)
    terms = region(PolicyActions(zero - 1, zero, advantages, torch.zeros(3, dtype=torch.int64), unselected))
    (gradient,) = torch.autograd.grad(terms.loss.sum(), zero)
    torch.testing.assert_close(gradient, -advantages, atol=1e-12, rtol=0)


def test_an_algorithm_uses_the_trust_region_of_its_spec() -> None:
    def surrogate(**fields: Any) -> str:
        entry = spec.GRPOSpec(**fields)
        return type(make_algorithm(spec.Algorithm(grpo=entry)).surrogate()).__name__  # type: ignore[attr-defined]

    assert surrogate() == "ClippedRatio"
    assert surrogate(trust_region=spec.TrustRegion(sapo=spec.SAPO())) == "SigmoidRatio"


def test_a_ratio_of_responses_is_refused() -> None:
    with pytest.raises(ValueError, match="needs the ratio of each token"):
        spec.GSPOSpec(trust_region=spec.TrustRegion(dppo=spec.DPPO()))
