"""Combination of rewards, with numbers worked by hand."""

import json
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kubealign.spec.sections.rewards import Reward
from kubealign_services.batch.packed import Batch, pack
from kubealign_services.batch.reward_columns import add_scores, is_unrewarded, read_scores
from kubealign_services.scoring import combination
from kubealign_services.scoring.combination import combine_rewards, merge_moments

FUNCTION = {"module": "m:f"}


def batch(truncated: list[int], **rewards: list[float | None]) -> Batch:
    count = len(truncated)
    result = pack([[1]] * count, [str(i) for i in range(count)])
    result.sequence_columns["truncated"] = torch.tensor(truncated, dtype=torch.uint8)
    for name, values in rewards.items():
        add_scores(result, name, values)
    return result


def reward(name: str = "a", **fields: object) -> Reward:
    return Reward.model_validate({"name": name, "function": FUNCTION, **fields})


def test_weighted_sum_and_metrics() -> None:
    result = batch([0, 0], a=[1.0, 3.0], b=[10.0, 20.0])
    metrics = combine_rewards(result, [reward("a", weight=2), reward("b", weight=-0.1)], 1, {})
    # 2 x 1 - 0.1 x 10 = 1, 2 x 3 - 0.1 x 20 = 4
    assert result.sequence("rewards").tolist() == [1.0, 4.0]
    assert result.sequence("transformed.b").tolist() == [10.0, 20.0]
    assert (result.scalars["weight.a"], result.scalars["weight.b"]) == (2, -0.1)
    assert metrics == pytest.approx(
        {
            "reward/mean": 2.5,
            "reward/std": 1.5,
            "reward/a/mean": 2.0,
            "reward/a/std": 1.0,
            "reward/b/mean": 15.0,
            "reward/b/std": 5.0,
        }
    )


def test_fixed_moments_then_clip_then_the_truncated_value() -> None:
    result = batch([0, 0, 1], a=[5.0, 20.0, 7.0])
    spec = reward(standardize={"fixed": {"mean": 3, "std": 2}}, clip=3, truncatedValue=-4)
    combine_rewards(result, [spec], 1, {})
    # (5 - 3) / 2 = 1; (20 - 3) / 2 = 8.5, clipped to 3; truncated: -4 as it stands, not clipped
    assert result.sequence("rewards").tolist() == [1.0, 3.0, -4.0]


def with_turns(result: Batch, **turns: list[float]) -> Batch:
    """Repeat each sequence's only token, so that a response has two turns, and add their rewards."""
    two = pack([[1, 1]] * len(result), result.sample_ids)
    two.sequence_columns |= result.sequence_columns
    for name, values in turns.items():
        two.token_columns[f"turn_reward.{name}"] = torch.tensor(values, dtype=torch.float64)
        two.token_columns[f"turn_end.{name}"] = torch.ones(len(values), dtype=torch.uint8)
    return two


def test_rewards_of_turns_are_scaled_and_weighted_as_their_sum() -> None:
    result = with_turns(batch([0, 0], a=[3.0, 8.0], b=[1.0, 1.0]), a=[1.0, 2.0, 0.0, 8.0])
    spec = reward("a", weight=3, standardize={"fixed": {"mean": 1, "std": 2}})
    combine_rewards(result, [spec, reward("b")], 1, {})
    # 3 x 1 / 2, 3 x 2 / 2, 0, 3 x 8 / 2; the mean, 3 x -1 / 2, and b belong to the response
    assert result.token("turn_rewards").tolist() == [1.5, 3.0, 0.0, 12.0]
    assert result.sequence("rewards").tolist() == [3 * (3 - 1) / 2 + 1, 3 * (8 - 1) / 2 + 1]


def test_rewards_of_turns_are_divided_by_the_running_standard_deviation() -> None:
    result = with_turns(batch([0, 0], a=[3.0, 7.0]), a=[1.0, 2.0, 0.0, 7.0])
    combine_rewards(result, [reward("a", standardize={"running": {}})], 1, {})
    # 3 and 7: mean 5, standard deviation 2
    assert result.token("turn_rewards").tolist() == [0.5, 1.0, 0.0, 3.5]


def test_a_truncated_response_with_a_value_of_its_own_has_no_rewards_of_turns() -> None:
    result = with_turns(batch([1, 0], a=[3.0, 7.0]), a=[1.0, 2.0, 0.0, 7.0])
    combine_rewards(result, [reward("a", truncatedValue=-4)], 1, {})
    assert result.token("turn_rewards").tolist() == [0.0, 0.0, 0.0, 7.0]
    assert result.token("turn_ends").tolist() == [0, 0, 1, 1]
    assert result.sequence("rewards").tolist() == [-4.0, 7.0]


def test_ends_of_turns_are_those_of_the_sources_with_a_weight() -> None:
    result = with_turns(
        batch([0, 0], a=[3.0, 8.0], b=[1.0, 1.0]), a=[1.0, 2.0, 0.0, 8.0], b=[0.0, 1.0, 0.0, 1.0]
    )
    result.token_columns["turn_end.a"] = torch.tensor([1, 0, 0, 1], dtype=torch.uint8)
    combine_rewards(result, [reward("a"), reward("b", weight=0)], 1, {})
    assert result.token("turn_ends").tolist() == [1, 0, 0, 1]


def test_first_steps_are_counted_and_kept() -> None:
    state: dict[str, dict[str, float]] = {}
    spec = [reward(standardize={"firstSteps": {"steps": 1}})]
    first = batch([0, 0], a=[1.0, 5.0])
    combine_rewards(first, spec, 1, state)
    # mean 3, deviation 2
    assert first.sequence("rewards").tolist() == [-1.0, 1.0]
    assert state == {"a": {"count": 2.0, "mean": 3.0, "squares": 8.0}}
    second = batch([0], a=[11.0])
    combine_rewards(second, spec, 2, state)
    assert second.sequence("rewards").tolist() == [4.0]
    assert state["a"]["count"] == 2


def test_running_moments_are_of_all_steps() -> None:
    state: dict[str, dict[str, float]] = {}
    spec = [reward(standardize={"running": {}})]
    combine_rewards(batch([0, 0], a=[1.0, 5.0]), spec, 1, state)
    later = batch([0], a=[9.0])
    combine_rewards(later, spec, 2, json.loads(json.dumps(state)))
    # of 1, 5, 9: mean 5, squares 16 + 0 + 16, deviation sqrt(32 / 3); (9 - 5) / 3.26599
    assert later.sequence("rewards").tolist() == pytest.approx([4 / math.sqrt(32 / 3)])


def test_truncated_responses_do_not_count_where_they_are_given_a_value() -> None:
    state: dict[str, dict[str, float]] = {}
    result = batch([0, 0, 1], a=[1.0, 5.0, 1000.0])
    combine_rewards(result, [reward(standardize={"running": {}}, truncatedValue=-1)], 1, state)
    assert result.sequence("rewards").tolist() == [-1.0, 1.0, -1.0]
    counted: dict[str, dict[str, float]] = {}
    combine_rewards(batch([0, 0, 1], a=[1.0, 5.0, 1000.0]), [reward(standardize={"running": {}})], 1, counted)
    assert (state["a"]["count"], counted["a"]["count"]) == (2, 3)


def test_equal_rewards_are_not_amplified() -> None:
    state: dict[str, dict[str, float]] = {}
    spec = [reward(standardize={"firstSteps": {"steps": 1}})]
    alike = batch([0] * 3, a=[0.1] * 3)
    combine_rewards(alike, spec, 1, state)
    assert alike.sequence("rewards").tolist() == pytest.approx([0, 0, 0], abs=1e-12)
    # Step 2 still counts, because step 1 had no deviation.
    # 0.1, 0.1, 0.1, 1.1: mean 0.35, variance (3 x 0.0625 + 0.5625) / 4 = 0.1875
    differing = batch([0], a=[1.1])
    combine_rewards(differing, spec, 2, state)
    assert differing.sequence("rewards").tolist() == pytest.approx([0.75 / math.sqrt(0.1875)])
    combine_rewards(batch([0], a=[50.0]), spec, 3, state)
    assert state["a"]["count"] == 4


def test_all_truncated_is_finite() -> None:
    result = batch([1, 1], a=[2.0, 3.0])
    metrics = combine_rewards(
        result, [reward(standardize={"firstSteps": {"steps": 1}}, truncatedValue=-3)], 1, {}
    )
    assert result.sequence("rewards").tolist() == [-3.0, -3.0]
    assert all(math.isfinite(value) for value in metrics.values())


@given(st.lists(st.lists(st.floats(-1e3, 1e3), max_size=6), min_size=1, max_size=6))
def test_moments_are_independent_of_batching(parts: list[list[float]]) -> None:
    moments = {"count": 0.0, "mean": 0.0, "squares": 0.0}
    for part in parts:
        moments = merge_moments(moments, torch.tensor(part, dtype=torch.float64))
    values = [value for part in parts for value in part]
    assert moments["count"] == len(values)
    if values:
        mean = sum(values) / len(values)
        assert moments["mean"] == pytest.approx(mean, abs=1e-9)
        assert moments["squares"] == pytest.approx(sum((v - mean) ** 2 for v in values), rel=1e-9, abs=1e-7)


def test_a_sum_of_the_rewards_that_apply() -> None:
    result = batch([0, 0, 0, 0], a=[1.0, 3.0, None, None], b=[None, 20.0, 40.0, None])
    metrics = combine_rewards(result, [reward("a", weight=2), reward("b", weight=-0.1)], 1, {})
    # 2 x 1; 2 x 3 - 0.1 x 20; -0.1 x 40; none
    assert result.sequence("rewards").tolist() == [2.0, 4.0, -4.0, 0.0]
    assert result.sequence("transformed.a").tolist() == [1.0, 3.0, 0.0, 0.0]
    assert result.sequence("applies.a").tolist() == [1, 1, 0, 0]
    assert metrics == pytest.approx(
        {
            "reward/mean": 0.5,
            # of 2, 4, -4, 0 around 0.5: (1.5^2 + 3.5^2 + 4.5^2 + 0.5^2) / 4 = 8.75
            "reward/std": 8.75**0.5,
            "reward/a/mean": 2.0,
            "reward/a/std": 1.0,
            "reward/b/mean": 30.0,
            "reward/b/std": 10.0,
            "reward/unrewarded_share": 0.25,
        }
    )


def test_a_reward_that_applies_to_no_sample_has_no_metric_and_no_moments() -> None:
    state: dict[str, dict[str, float]] = {}
    result = batch([0, 1], a=[None, None], b=[1.0, 2.0])
    limits = {"truncatedValue": -9, "clip": 1}
    spec = [reward("a", standardize={"running": {}}, sources=["sums"], **limits), reward("b")]
    metrics = combine_rewards(result, spec, 1, state)
    assert result.sequence("rewards").tolist() == [1.0, 2.0]
    assert not any(name.startswith("reward/a/") for name in metrics)
    assert metrics["reward/unrewarded_share"] == 0.0
    assert state["a"]["count"] == 0


def test_moments_of_the_samples_to_which_the_reward_applies() -> None:
    """Running moments over two steps: of 1 and 5 (mean 3, deviation 2), then of 1, 5 and 9 (mean 5)."""
    state: dict[str, dict[str, float]] = {}
    spec = [reward(standardize={"running": {}})]
    first = batch([0, 0, 0], a=[1.0, None, 5.0])
    combine_rewards(first, spec, 1, state)
    assert first.sequence("rewards").tolist() == [-1.0, 0.0, 1.0]
    second = batch([0, 0, 0], a=[None, 9.0, None])
    combine_rewards(second, spec, 2, json.loads(json.dumps(state)))
    # deviation of 1, 5, 9: sqrt(32 / 3)
    assert second.sequence("rewards").tolist() == pytest.approx([0.0, 4 / math.sqrt(32 / 3), 0.0])


def test_first_steps_wait_for_the_first_samples_of_a_reward() -> None:
    state: dict[str, dict[str, float]] = {}
    spec = [reward(standardize={"firstSteps": {"steps": 1}})]
    combine_rewards(batch([0], a=[None]), spec, 1, state)
    later = batch([0, 0, 0], a=[1.0, 5.0, None])
    combine_rewards(later, spec, 2, state)
    assert later.sequence("rewards").tolist() == [-1.0, 1.0, 0.0]


def test_the_first_sample_without_a_reward_is_logged_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(combination._unrewarded_warning, "_is_logged", False)
    for _ in range(2):
        combine_rewards(batch([0, 0], a=[1.0, None]), [reward()], 1, {})
    (record,) = caplog.records
    assert record.levelname == "WARNING" and record.sample == "1"
    assert "no reward applies to a sample" in record.message


def test_scores_of_earlier_batches_apply_to_all_samples() -> None:
    """A batch recorded before rewards could be absent has no column applies.NAME."""
    assert read_scores(batch([0, 0], a=[1.0, 0.0]), "a") == [1.0, 0.0]
    assert is_unrewarded(batch([0, 0], a=[1.0, 0.0])).tolist() == [False, False]
    assert is_unrewarded(batch([0, 0])).tolist() == [False, False]
