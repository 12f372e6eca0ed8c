"""Results and configurations of lm-eval, without the package."""

import json
from pathlib import Path

import pytest

from kubealign.local.lm_harness import LmEvalRecord, parse_results, read_config
from kubealign.replay.plan import ReplayError


def test_metrics_are_named_by_task_and_filter_with_their_intervals() -> None:
    results = {
        "sums": {
            "alias": " - sums",
            "sample_len": 8,
            "exact_match,strict": 0.25,
            "exact_match_stderr,strict": 0.1,
            "exact_match,none": 0.5,
            "exact_match_stderr,none": "N/A",
        },
        "group": {"acc,none": 1, "acc_stderr,none": 0.0, "perplexity,none": float("inf")},
    }
    assert parse_results(results) == pytest.approx(
        {
            "lm_eval/sums/exact_match/strict": 0.25,
            "lm_eval/sums/exact_match/strict/ci_low": 0.054,
            "lm_eval/sums/exact_match/strict/ci_high": 0.446,
            "lm_eval/sums/exact_match": 0.5,
            "lm_eval/group/acc": 1.0,
            "lm_eval/group/acc/ci_low": 1.0,
            "lm_eval/group/acc/ci_high": 1.0,
        }
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("num_fewshot: 0", "that names tasks"),
        ("[tasks]", "that names tasks"),
        ("tasks: [a", "cannot be read"),
        ("{tasks: [a], model: hf}", "model is set by the evaluation: remove it"),
        ("{tasks: [a], output_path: out}", "output_path is set by the evaluation: remove it"),
        ("{tasks: [a], model_args: {pretrained: m}}", "model_args.pretrained is set by the evaluation"),
        ("{tasks: [a], model_args: 'dtype=float32'}", "model_args must be names with values"),
    ],
)
def test_configurations_that_cannot_be_used_are_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "lm_eval.yaml"
    path.write_text(text)
    with pytest.raises(ReplayError) as refused:
        read_config(path)
    assert message in str(refused.value)
    assert f"--lm-eval {path}" in str(refused.value)


def test_a_file_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(ReplayError, match=r"--lm-eval .*none\.yaml: cannot be read"):
        read_config(tmp_path / "none.yaml")


def test_models_are_recorded_in_the_order_of_their_steps(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "eval.json"
    record = LmEvalRecord(path)
    record.add(4, {"lm_eval/a/acc": 0.5})
    record.add(2, {"lm_eval/a/acc": 0.25})
    again = LmEvalRecord(path)
    assert again.steps == [2, 4]
    assert again.models([4]) == [{"step": 4, "metrics": {"lm_eval/a/acc": 0.5}}]
    assert [row["step"] for row in json.loads(path.read_text())["log_history"]] == [2, 4]


def test_another_file_is_no_record(tmp_path: Path) -> None:
    path = tmp_path / "eval.json"
    path.write_text("[]")
    with pytest.raises(ReplayError, match="is no record of lm-eval: delete it, or use --fresh"):
        LmEvalRecord(path)
