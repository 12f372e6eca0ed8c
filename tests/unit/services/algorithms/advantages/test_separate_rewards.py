"""Rewards that are normalised one by one, against TRL's formula written as a loop."""

import statistics

import pytest
import torch

from kubealign.spec import algorithms as spec
from kubealign.spec.sections.rewards import Reward, RewardFunction
from kubealign_services.algorithms.factory import make_algorithm
from kubealign_services.batch.packed import Batch, pack
from kubealign_services.scoring.combination import combine_rewards

GROUPS = [0, 0, 0, 1, 1, 1]
SCORES = {"exact": [1.0, 0, 0, 1, 1, 0], "length": [40.0, 10, 30, 20, 80, 10]}
REWARDS = [
    Reward(name="exact", weight=2.0, function=RewardFunction(module="a:b")),
    Reward(name="length", weight=0.5, function=RewardFunction(module="a:b")),
]
NO_KL = spec.KL(fixed=spec.FixedKL(coefficient=0))
SEPARATE = spec.RewardAggregation.NORMALIZE_THEN_SUM


def batch() -> Batch:
    """One response of one token for each sample, with its rewards combined."""
    result = pack([[7, 8]] * len(GROUPS), [str(i) for i in range(len(GROUPS))])
    result.token_columns["loss_mask"] = (result.positions > 0).to(torch.uint8)
    result.token_columns["behaviour_logprobs"] = torch.zeros(len(result.tokens), dtype=torch.float64)
    result.sequence_columns["group"] = torch.tensor(GROUPS)
    result.sequence_columns["truncated"] = torch.zeros(len(GROUPS), dtype=torch.uint8)
    for name, values in SCORES.items():
        result.sequence_columns[f"reward.{name}"] = torch.tensor(values)
    combine_rewards(result, REWARDS, 1, {})
    return result


def expected() -> list[float]:
    """TRL's normalize_then_sum (grpo_trainer.py): each reward by its group, weighted, then by the batch."""
    totals = []
    for i, group in enumerate(GROUPS):
        total = 0.0
        for reward in REWARDS:
            own = [SCORES[reward.name][j] for j in range(len(GROUPS)) if GROUPS[j] == group]
            value = SCORES[reward.name][i] - statistics.fmean(own)
            total += reward.weight * value / (statistics.stdev(own) + 1e-6)
        totals.append(total)
    return [(total - statistics.fmean(totals)) / (statistics.stdev(totals) + 1e-6) for total in totals]


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
