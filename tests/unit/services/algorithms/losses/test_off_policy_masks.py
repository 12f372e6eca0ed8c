"""Masks of responses that are too far off policy, against the peers' formulas written as loops."""

import math
from typing import Any

import pytest
import torch

from kubealign.spec import algorithms as spec
from kubealign_services.algorithms.contract import ModelOutputs
from kubealign_services.algorithms.losses.importance_sampling import importance_weights
from kubealign_services.algorithms.losses.policy_objective import PolicyObjective
from kubealign_services.algorithms.losses.surrogate import ClippedRatio
from kubealign_services.batch.packed import Batch, pack

# Three responses of two tokens: log p_old - log p_engine, and its mean 0.05, -0.5, 0.6.
DIFFERENCES = [[0.3, -0.2], [-0.4, -0.6], [2.0, -0.8]]
NO_KL = spec.KL(fixed=spec.FixedKL(coefficient=0))


def test_a_response_whose_geometric_mean_is_outside_is_left_out_whole() -> None:
    """OpenRLHF's seq-mask-tis (loss.py), with its tokens' weights truncated as NeMo-RL does."""
    low, high, cap = 0.7, 1.5, 1.2
    expected = []
    for tokens in DIFFERENCES:
        geometric_mean = math.exp(sum(tokens) / len(tokens))
        keep = 1.0 if low <= geometric_mean <= high else 0.0
        expected += [keep * min(math.exp(token), cap) for token in tokens]
    difference = torch.tensor(DIFFERENCES, dtype=torch.float64).flatten()
    sequence = torch.arange(3).repeat_interleave(2)
    correction = spec.ImportanceCorrection(high=cap, sequence_mask=spec.WeightBounds(low=low, high=high))
    weights = importance_weights(difference, sequence, correction)
    assert expected[2:] == [0.0] * 4
    assert weights.applied.tolist() == pytest.approx(expected, abs=1e-12)
    assert weights.outside.tolist() == [1, 0, 1, 1, 1, 1]


def batch(advantages: list[float]) -> Batch:
    """One response of two tokens per advantage, after a prompt of one token."""
    result = pack([[7, 8, 9]] * len(advantages), [str(i) for i in range(len(advantages))])
    result.token_columns["loss_mask"] = (result.positions > 0).to(torch.uint8)
    result.token_columns["advantages"] = torch.tensor(advantages, dtype=torch.float64)[
        result.sequence_of_token
    ]
    result.sequence_columns["truncated"] = torch.zeros(len(advantages), dtype=torch.uint8)
    return result


def test_negative_responses_that_the_policy_has_left_are_masked() -> None:
    """TRL's get_off_policy_mask (grpo_trainer.py): keep where A >= 0 or the mean of log p_sampled - log p is
    at most the threshold. A masked response stays counted in the mean."""
    threshold = 0.5
    advantages = [-1.0, -1.0, 1.0]
    # The policy has moved by -0.9 and -0.3; -0.4 and -0.4; -2 and -2.
    moves = torch.tensor([0, -0.9, -0.3, 0, -0.4, -0.4, 0, -2.0, -2.0], dtype=torch.float64)
    result = batch(advantages)
    sampled = torch.full((9,), -1.0, dtype=torch.float64)
    result.token_columns |= {"engine_logprobs": sampled, "old_logprobs": sampled.clone()}
    expected = []
    for row, advantage in enumerate(advantages):
        own = moves[3 * row + 1 : 3 * row + 3]
        keep = advantage >= 0 or float(-own.mean()) <= threshold
        expected += [-float(move.exp()) * advantage if keep else 0.0 for move in own]
    entry = spec.PPOSpec(
        kl=NO_KL, clip=spec.Clip(low=0.99, high=9), off_policy_mask=spec.OffPolicyMask(threshold=threshold)
    )
    objective = PolicyObjective(entry, ClippedRatio(entry.clip))
    objective.prepare(result)
    logprobs = (sampled + moves).requires_grad_()
    terms = objective.loss(ModelOutputs(logprobs=logprobs, entropy=torch.zeros(9)), result)
    assert float(terms.loss.detach()) == pytest.approx(sum(expected) / 6, abs=1e-12)
    assert float(terms.sums["policy/off_policy_masked_fraction"]) == pytest.approx(1 / 3)
    (gradient,) = torch.autograd.grad(terms.loss, logprobs)
    assert gradient[1:3].tolist() == [0, 0] and gradient[4] > 0 and gradient[7] < 0


@pytest.mark.parametrize("bounds", [{"low": 1.0, "high": 1.0}, {"low": 2.0, "high": 1.0}])
def test_bounds_in_the_wrong_order_are_refused(bounds: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be below high"):
        spec.ImportanceCorrection(sequence_mask=spec.WeightBounds(**bounds))
