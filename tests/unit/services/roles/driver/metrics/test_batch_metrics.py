"""Log-probability gap between engine and trainer, over the tokens whose values should agree."""

import pytest
import torch

from kubealign_services.batch.packed import Batch, pack
from kubealign_services.roles.driver.errors import UnrecoverableError
from kubealign_services.roles.driver.metrics.batch_metrics import check_logprob_gap, measure_logprob_gap


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


def test_a_gap_above_the_gate_or_nan_fails_the_job() -> None:
    check_logprob_gap({"rollout/logprob_gap_mean": 0.05}, 0.05)
    for mean in (0.051, float("nan")):
        with pytest.raises(UnrecoverableError, match="mismatchGate"):
            check_logprob_gap({"rollout/logprob_gap_mean": mean}, 0.05)
