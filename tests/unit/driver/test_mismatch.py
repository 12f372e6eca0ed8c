"""The gap between engine and trainer: of the tokens that both should say the same of, and no others."""

import pytest
import torch

from kubealign_services.batch.packed import Batch, pack
from kubealign_services.driver.failures import JobFailed
from kubealign_services.driver.mismatch import check_mismatch, mismatch


def batch() -> Batch:
    """Gaps 0.1, 0.3, 0.5 and 0.2 at the response tokens, which versions 4, 5, 4 and 5 made."""
    made = pack([[1, 2, 3], [1, 2, 3]], ["0", "1"])
    made.token_columns |= {
        "loss_mask": torch.tensor([0, 1, 1, 0, 1, 1], dtype=torch.uint8),
        "engine_logprobs": torch.tensor([9, -1, -1, 9, -1, -1], dtype=torch.float64),
        "old_logprobs": torch.tensor([0, -1.1, -0.7, 0, -1.5, -0.8], dtype=torch.float64),
        "weight_version": torch.tensor([0, 4, 5, 0, 4, 5], dtype=torch.int32),
    }
    return made


def test_all_response_tokens_where_no_version_is_known() -> None:
    figures = mismatch(batch())
    assert figures["rollout/logprob_gap_mean"] == pytest.approx((0.1 + 0.3 + 0.5 + 0.2) / 4)
    assert figures["rollout/logprob_gap_max"] == pytest.approx(0.5)


def test_tokens_of_older_weights_are_left_out() -> None:
    made = batch()
    made.scalars["version"] = 5.0
    figures = mismatch(made)
    assert figures["rollout/logprob_gap_mean"] == pytest.approx((0.3 + 0.2) / 2)
    assert figures["rollout/logprob_gap_max"] == pytest.approx(0.3)


def test_where_older_weights_made_all_there_is_no_figure() -> None:
    made = batch()
    made.scalars["version"] = 6.0
    assert mismatch(made) == {}


def test_companions_are_left_out() -> None:
    made = batch()
    made.sequence_columns["companion"] = torch.tensor([0, 1], dtype=torch.uint8)
    assert mismatch(made)["rollout/logprob_gap_mean"] == pytest.approx((0.1 + 0.3) / 2)


def test_a_gap_above_the_gate_ends_the_job_and_so_does_one_that_is_no_number() -> None:
    check_mismatch({"rollout/logprob_gap_mean": 0.05}, 0.05)
    for mean in (0.051, float("nan")):
        with pytest.raises(JobFailed, match="mismatchGate"):
            check_mismatch({"rollout/logprob_gap_mean": mean}, 0.05)
