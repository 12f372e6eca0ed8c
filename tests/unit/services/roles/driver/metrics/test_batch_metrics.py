"""Metrics of a batch: log-probability gap, lengths, scoring times, objective of RLHF, throughput."""

import pytest
import torch

from kubealign.v1 import scoring_pb2
from kubealign_services.batch.auxiliary_sequences import IS_BASELINE
from kubealign_services.batch.packed import Batch, pack
from kubealign_services.data.epoch_shuffle import DatasetOrder, EpochCursor
from kubealign_services.data.mixture import MixedSource, MixtureOrder
from kubealign_services.roles.driver.metrics.batch_metrics import (
    measure_logprob_gap,
    objective_metrics,
    response_metrics,
    scoring_seconds,
    source_metrics,
    source_reward_metrics,
)
from kubealign_services.roles.driver.metrics.report import throughput
from kubealign_services.roles.driver.rollouts.prompt_source import EpochPrompts


def batch() -> Batch:
    """Return gaps 0.1, 0.3, 0.5 and 0.2 at response tokens of versions 4, 5, 4 and 5."""
    packed = pack([[1, 2, 3], [1, 2, 3]], ["0", "1"])
    packed.token_columns |= {
        "loss_mask": torch.tensor([0, 1, 1, 0, 1, 1], dtype=torch.uint8),
        "engine_logprobs": torch.tensor([9, -1, -1, 9, -1, -1], dtype=torch.float64),
        "old_logprobs": torch.tensor([0, -1.1, -0.7, 0, -1.5, -0.8], dtype=torch.float64),
        "weight_version": torch.tensor([0, 4, 5, 0, 4, 5], dtype=torch.int32),
    }
    return packed


def test_without_versions_all_response_tokens_count() -> None:
    figures = measure_logprob_gap(batch())
    assert figures["rollout/logprob_gap_mean"] == pytest.approx((0.1 + 0.3 + 0.5 + 0.2) / 4)
    assert figures["rollout/logprob_gap_max"] == pytest.approx(0.5)


def test_tokens_of_older_weights_are_left_out() -> None:
    packed = batch()
    packed.scalars["version"] = 5.0
    figures = measure_logprob_gap(packed)
    assert figures["rollout/logprob_gap_mean"] == pytest.approx((0.3 + 0.2) / 2)
    assert figures["rollout/logprob_gap_max"] == pytest.approx(0.3)


def test_without_comparable_tokens_there_is_no_metric() -> None:
    packed = batch()
    packed.scalars["version"] = 6.0
    assert measure_logprob_gap(packed) == {}


def test_auxiliary_sequences_are_left_out() -> None:
    packed = batch()
    packed.sequence_columns["companion"] = torch.tensor([0, 1], dtype=torch.uint8)
    assert measure_logprob_gap(packed)["rollout/logprob_gap_mean"] == pytest.approx((0.1 + 0.3) / 2)


def test_a_prompt_ends_at_the_first_response_token() -> None:
    """Check that a tool's tokens between two turns of the policy count as neither prompt nor response."""
    packed = pack([[1, 2, 3, 4, 5, 6], [1, 2, 3]], ["0", "1"])
    packed.token_columns |= {
        "loss_mask": torch.tensor([0, 0, 1, 0, 0, 1, 0, 1, 1], dtype=torch.uint8),
        "weight_version": torch.zeros(9, dtype=torch.int32),
        "behaviour_logprobs": torch.zeros(9),
    }
    packed.sequence_columns["truncated"] = torch.zeros(2, dtype=torch.uint8)
    metrics = response_metrics(packed, 0)
    assert (metrics["prompt/length"], metrics["prompt/length_max"]) == (1.5, 2)
    assert (metrics["response/length"], metrics["response/length_max"]) == (2, 2)
    assert (metrics["batch/prompt_tokens"], metrics["batch/response_tokens"]) == (3, 4)
    assert metrics["batch/tokens"] == 9


def test_scoring_seconds_are_added_up_by_source() -> None:
    scores = [("exact", 0.5), ("reference", 2.0), ("exact", 0.25)]
    assert scoring_seconds(
        scoring_pb2.Score(source=source, seconds=seconds) for source, seconds in scores
    ) == {"seconds/score/exact": 0.75, "seconds/score/reference": 2.0}


def test_rewards_and_rows_of_the_sources_of_a_mixture() -> None:
    """Rows 0 and 1 are of the source a, rows 2 and 3 of b, and row 4 of c."""
    sources = [MixedSource("a", 1, 2), MixedSource("b", 1, 2), MixedSource("c", 1, 1)]
    names = ["0/1#0", "0/1#1", "3/2#0", "0/0#0", "0/0#1"]
    packed = pack([[1]] * 5, names)
    packed.sequence_columns["rewards"] = torch.tensor([1.0, 2.0, 5.0, 6.0, 100.0])
    packed.sequence_columns[IS_BASELINE] = torch.tensor([0, 0, 0, 0, 1], dtype=torch.uint8)
    mixed = EpochPrompts([], MixtureOrder(sources, 1), EpochCursor(), [])  # type: ignore[arg-type]
    assert source_reward_metrics(packed, mixed) == {
        "reward/source/a/mean": pytest.approx(3.0),
        "reward/source/b/mean": pytest.approx(5.0),
    }
    assert source_metrics(mixed, ["0/1", "3/2", "0/0"]) == {
        "data/source/a/rows": 2,
        "data/source/b/rows": 1,
        "data/source/c/rows": 0,
    }
    plain = EpochPrompts([], DatasetOrder(5, 1), EpochCursor(), [])  # type: ignore[arg-type]
    assert source_reward_metrics(packed, plain) == source_metrics(plain, ["0/1"]) == {}


def test_the_objective_is_the_reward_minus_the_priced_divergence() -> None:
    step = {"reward/mean": 1.5, "kl/coefficient": 0.1, "kl/reference_sequence": 4.0}
    assert objective_metrics(step) == {
        "objective/non_score_reward": pytest.approx(-0.4),
        "objective/rlhf_reward": pytest.approx(1.1),
    }
    for name in step:
        assert objective_metrics({other: step[other] for other in step if other != name}) == {}


def test_throughput_is_reported_for_the_phases_that_a_step_has() -> None:
    step = {"batch/tokens": 60, "batch/response_tokens": 20, "seconds/step": 4.0, "seconds/train": 2.0}
    assert throughput(step) == {"tokens_per_second": 15, "tokens_per_second/train": 30}
    assert throughput({**step, "seconds/generate": 0.5})["tokens_per_second/generate"] == 40
    assert throughput({"seconds/step": 4.0}) == {}
