"""Rewards that are normalised one by one, against TRL's formula written as a loop."""

import statistics

import pytest
import torch

from kubealign.spec import algorithms as spec
from kubealign.spec.sections.rewards import Reward, RewardFunction
from kubealign_services.algorithms.factory import make_algorithm
from kubealign_services.batch.packed import Batch, pack
from kubealign_services.batch.reward_columns import add_scores
from kubealign_services.scoring.combination import combine_rewards

GROUPS = [0, 0, 0, 1, 1, 1]
Scores = dict[str, list[float | None]]
SCORES: Scores = {"exact": [1.0, 0, 0, 1, 1, 0], "length": [40.0, 10, 30, 20, 80, 10]}
REWARDS = [
    Reward(name="exact", weight=2.0, function=RewardFunction(module="a:b")),
    Reward(name="length", weight=0.5, function=RewardFunction(module="a:b")),
]
NO_KL = spec.KL(fixed=spec.FixedKL(coefficient=0))
SEPARATE = spec.RewardAggregation.NORMALIZE_THEN_SUM


def batch(scores: Scores = SCORES) -> Batch:
    """One response of one token for each sample, with its rewards combined."""
    result = pack([[7, 8]] * len(GROUPS), [str(i) for i in range(len(GROUPS))])
    result.token_columns["loss_mask"] = (result.positions > 0).to(torch.uint8)
    result.token_columns["behaviour_logprobs"] = torch.zeros(len(result.tokens), dtype=torch.float64)
    result.sequence_columns["group"] = torch.tensor(GROUPS)
    result.sequence_columns["truncated"] = torch.zeros(len(GROUPS), dtype=torch.uint8)
    for name, values in scores.items():
        add_scores(result, name, values)
    combine_rewards(result, REWARDS, 1, {})
    return result


def expected(scores: Scores = SCORES) -> list[float]:
    """TRL's normalize_then_sum (grpo_trainer.py): each reward by its group, weighted, then by the batch. A
    missing score adds nothing, and counts in no mean and no deviation of its group. A sample without a score
    has advantage 0 and counts in no mean and no deviation of the batch."""
    totals = []
    for i, group in enumerate(GROUPS):
        total = 0.0
        for reward in REWARDS:
            column = scores[reward.name]
            own = [score for j, score in enumerate(column) if GROUPS[j] == group and score is not None]
            score = column[i]
            if score is not None:
                deviation = statistics.stdev(own) if len(own) > 1 else 0.0
                total += reward.weight * (score - statistics.fmean(own)) / (deviation + 1e-6)
        totals.append(total)
    missing = [all(column[i] is None for column in scores.values()) for i in range(len(GROUPS))]
    known = [total for total, is_missing in zip(totals, missing, strict=True) if not is_missing]
    mean, deviation = statistics.fmean(known), statistics.stdev(known) + 1e-6
    return [
        0.0 if is_missing else (total - mean) / deviation
        for total, is_missing in zip(totals, missing, strict=True)
    ]


def test_each_reward_is_normalised_by_itself() -> None:
    result = batch()
    make_algorithm(spec.Algorithm(grpo=spec.GRPOSpec(kl=NO_KL, reward_aggregation=SEPARATE))).advantages(
        result, {}
    )
    advantages = result.token("advantages")[result.token("loss_mask").bool()]
    assert advantages.tolist() == pytest.approx(expected(), abs=1e-6)
    # The sum of both is nearly the length alone.
    summed = batch()
    make_algorithm(spec.Algorithm(grpo=spec.GRPOSpec(kl=NO_KL))).advantages(summed, {})
    assert (summed.token("advantages") - result.token("advantages")).abs().max() > 0.3


@pytest.mark.parametrize(
    "scores",
    [
        # Two sources of prompts, each with its own reward.
        {"exact": [1.0, 0, 0, None, None, None], "length": [None, None, None, 20, 80, 10]},
        # Functions that do not apply to some samples, and a sample without any reward.
        {"exact": [1.0, None, 0, None, 1, 0], "length": [40.0, 10, 30, None, None, None]},
        # A reward that a single sample of a group has, and one that no sample has.
        {"exact": [1.0, None, None, 1, 1, 0], "length": [None] * 6},
    ],
)
def test_a_missing_reward_adds_nothing(scores: Scores) -> None:
    result = batch(scores)
    make_algorithm(spec.Algorithm(grpo=spec.GRPOSpec(kl=NO_KL, reward_aggregation=SEPARATE))).advantages(
        result, {}
    )
    advantages = result.token("advantages")[result.token("loss_mask").bool()]
    assert advantages.tolist() == pytest.approx(expected(scores), abs=1e-6)


def test_rewards_without_their_sources_are_refused() -> None:
    result = batch()
    result.sequence_columns = {
        name: column
        for name, column in result.sequence_columns.items()
        if not name.startswith("transformed.")
    }
    algorithm = make_algorithm(spec.Algorithm(grpo=spec.GRPOSpec(kl=NO_KL, reward_aggregation=SEPARATE)))
    with pytest.raises(ValueError, match="finds no rewards by source"):
        algorithm.advantages(result, {})


def test_parts_of_the_return_that_are_no_reward_are_refused() -> None:
    with pytest.raises(ValueError, match="have no scale of their own"):
        spec.GRPOSpec(reward_aggregation=SEPARATE, overlong=spec.OverlongPenalty(buffer_tokens=4))
    with pytest.raises(ValueError, match="have no scale of their own"):
        spec.GRPOSpec(reward_aggregation=SEPARATE, kl=spec.KL(fixed=spec.FixedKL(coefficient=0.1)))
