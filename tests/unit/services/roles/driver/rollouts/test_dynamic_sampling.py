"""Dynamic sampling by the weighted sum of the rewards, or by one of them."""

import pytest

from kubealign.spec.sections.rewards import Reward, RewardFunction
from kubealign.v1 import rollout_pb2, scoring_pb2
from kubealign_services.roles.driver.rollouts.dynamic_sampling import DynamicSamplingFilter
from kubealign_services.roles.driver.rollouts.group_tracker import RolloutGroup

REWARDS = [Reward(name=name, function=RewardFunction(module="a:b")) for name in ("exact", "length")]


def group(**scores: list[float | None]) -> RolloutGroup:
    """Group whose samples have these scores by reward; None: the reward does not apply."""
    samples = len(scores["exact"])
    result = RolloutGroup("0/0", samples, min_version=0, deadline=0.0, requested_at=0.0)
    for sample in range(samples):
        result.rollouts[sample] = rollout_pb2.Rollout(sample=sample)
        for name, values in scores.items():
            result.scores[sample, "", name] = scoring_pb2.Score(reward=values[sample])
    return result


@pytest.mark.parametrize(("by", "dropped"), [(None, False), ("exact", True), ("length", False)])
def test_the_named_reward_decides(by: str | None, dropped: bool) -> None:
    """All answers are right; their lengths differ, so that the sum of both rewards does too."""
    dynamic_sampling = DynamicSamplingFilter(REWARDS, 6, by)
    assert dynamic_sampling.should_drop(group(exact=[1, 1, 1], length=[0.1, 0.3, 0.2])) is dropped


def test_a_difference_of_the_named_reward_keeps_the_group() -> None:
    dynamic_sampling = DynamicSamplingFilter(REWARDS, 6, "exact")
    # The sums are equal: 1 + 0 and 0 + 1.
    assert not dynamic_sampling.should_drop(group(exact=[1, 0], length=[0, 1]))
    assert DynamicSamplingFilter(REWARDS, 6).should_drop(group(exact=[1, 0], length=[0, 1]))


def test_samples_without_the_named_reward_are_not_compared() -> None:
    dynamic_sampling = DynamicSamplingFilter(REWARDS, 6, "exact")
    assert dynamic_sampling.should_drop(group(exact=[1, None, 1], length=[0, 1, 2]))
    assert not dynamic_sampling.should_drop(group(exact=[1, None, 0], length=[0, 0, 0]))
    # Another source of prompts: nothing tells that the group has no learning signal.
    assert not dynamic_sampling.should_drop(group(exact=[None, None], length=[0, 0]))


def test_a_missing_reward_adds_nothing_to_the_sum() -> None:
    dynamic_sampling = DynamicSamplingFilter(REWARDS, 6)
    assert dynamic_sampling.should_drop(group(exact=[None, 1], length=[1, 0]))
    assert not dynamic_sampling.should_drop(group(exact=[None, 1], length=[1, 1]))
    assert dynamic_sampling.should_drop(group(exact=[None, None], length=[None, None]))
