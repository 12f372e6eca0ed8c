"""Previews of a step's samples and their tokens, with numbers laid out by hand."""

import json
from pathlib import Path

import pytest
import torch
from rich.console import Console, RenderableType

from kubealign.cli.views.sample_view import sample_view
from kubealign.read_model import parse_sample
from kubealign.validation_record import ValidationRecord, parse_validation_record
from kubealign_dashboard.api import serializers
from kubealign_services.batch.packed import Batch
from kubealign_services.batch.reward_columns import add_scores
from kubealign_services.roles.driver.metrics.report import SampleText, StepRecord
from kubealign_services.roles.driver.metrics.sample_logging import (
    HEAD_TOKENS,
    MAX_CHARACTERS,
    PREVIEWS_PER_STEP,
    TAIL_TOKENS,
    SampleFile,
    SamplePreviews,
    TokenSplitter,
    choose_samples,
    collect_token_values,
    truncate_text,
    truncate_tokens,
)
from kubealign_services.roles.driver.validation.metrics import summarize_samples
from kubealign_services.roles.driver.validation.samples import ValidationSample
from kubealign_services.telemetry.json_values import to_json
from kubealign_services.telemetry.trackers.completions import completion_rows

TEXTS = TokenSplitter(lambda: lambda tokens: "".join("abcdef"[token] for token in tokens))


def capture_text(view: RenderableType) -> str:
    console = Console(width=120)
    with console.capture() as capture:
        console.print(view)
    return capture.get()


def batch_of_two() -> Batch:
    """Return prompts of one token with the responses `bc` and `d`."""
    return Batch(
        tokens=torch.tensor([0, 1, 2, 0, 3], dtype=torch.int32),
        cu_seqlens=torch.tensor([0, 3, 5], dtype=torch.int32),
        sample_ids=["0/7#0", "0/7#1"],
        token_columns={
            "loss_mask": torch.tensor([0, 1, 1, 0, 1], dtype=torch.uint8),
            "engine_logprobs": torch.tensor([0.0, -1.0, -2.0, 0.0, -0.5]),
            "old_logprobs": torch.tensor([0.0, -1.25, -2.0, 0.0, -0.5]),
            "reference_logprobs": torch.tensor([0.0, -1.0, -3.0, 0.0, -0.5]),
            "values": torch.tensor([0.0, 0.1, 0.2, 0.0, 0.3]),
            "weight_version": torch.tensor([-1, 4, 4, -1, 5], dtype=torch.int32),
        },
        sequence_columns={
            "rewards": torch.tensor([0.5, -1.0], dtype=torch.float64),
            "reward.exact": torch.tensor([1.0, -2.0], dtype=torch.float64),
            "truncated": torch.tensor([0, 1], dtype=torch.uint8),
            "advantages": torch.tensor([0.75, -0.75], dtype=torch.float64),
        },
    )


def test_all_responses_of_a_validation_by_row_for_comparisons() -> None:
    long = "x" * (MAX_CHARACTERS + 1)
    samples = [
        ValidationSample("val@3/10", "p10", long, 1, True, {"a": None}, {"level": 1}),
        ValidationSample("val@3/9", "p9", "r9", 1, False, {"a": 1.0}, {}, {"a": "read"}),
    ]
    first, second = SamplePreviews.of_validation(samples)
    assert parse_validation_record(json.loads(to_json(first))) == ValidationRecord(
        9, "p9", "r9", {"a": 1.0}, {"a": "read"}
    )
    record = parse_validation_record(json.loads(to_json(second)))
    assert (record.row, record.truncated, record.is_shortened) == (10, True, True)
    assert record.response == truncate_text(long)
    assert record.set_name == ""
    (of_set, _) = SamplePreviews.of_validation(samples, "hard")
    assert parse_validation_record(json.loads(to_json(of_set))).set_name == "hard"
    # The file of the run directory has the same fields, with the whole text.
    assert parse_validation_record(json.loads(samples[0].to_json())) == ValidationRecord(
        10, "p10", long, {"a": None}, {}, truncated=True
    )


def test_values_of_each_token() -> None:
    values = collect_token_values(batch_of_two().select([0]))
    assert values == {
        "logprobs": [-1.0, -2.0],
        "trainer_logprobs": [-1.25, -2.0],
        # engine less trainer, trainer less reference
        "logprob_gap": [0.25, 0.0],
        "kl": [-0.25, 1.0],
        "advantages": [0.75, 0.75],
        "values": [pytest.approx(0.1), pytest.approx(0.2)],
    }


def test_without_old_logprobs_there_is_no_gap() -> None:
    batch = batch_of_two()
    del batch.token_columns["old_logprobs"], batch.token_columns["values"]
    assert collect_token_values(batch.select([1])) == {"logprobs": [-0.5], "advantages": [-0.75]}


def test_previews_round_trip_through_the_file(tmp_path: Path) -> None:
    step = StepRecord(6)
    step.sample_texts = {"0/7#0": SampleText("a", "bc"), "0/7#1": SampleText("a", "d")}
    SamplePreviews(TEXTS, seed=1).add_previews(batch_of_two(), step)
    first, second = (parse_sample("", step.step, sample) for sample in step.previews)
    assert (first.prompt, first.response, first.tokens) == ("a", "bc", ("b", "c"))
    assert (first.reward, first.rewards, first.weight_version) == (0.5, {"exact": 1.0}, 4)
    assert (first.group_id, first.purpose, first.truncated) == ("0/7", "train", False)
    assert first.token_values["logprob_gap"] == (0.25, 0.0)
    assert first.token_values["values"] == (0.1, 0.2)
    assert (second.response, second.truncated, second.weight_version) == ("d", True, 5)


def test_a_reward_that_does_not_apply_is_neither_zero_nor_left_out() -> None:
    batch, step = batch_of_two(), StepRecord(6)
    add_scores(batch, "exact", [None, 0.0])
    step.sample_texts = {"0/7#0": SampleText("a", "bc"), "0/7#1": SampleText("a", "d")}
    SamplePreviews(TEXTS, seed=1).add_previews(batch, step)
    read = [parse_sample("", 6, json.loads(to_json(sample))) for sample in step.previews]
    assert [sample.rewards for sample in read] == [{"exact": None}, {"exact": 0.0}]
    assert [row["reward/exact"] for row in completion_rows(6, 1, step.previews)] == [None, 0.0]
    shown = [capture_text(sample_view(sample)) for sample in read]
    assert "exact does not apply" in shown[0] and "does not apply" not in shown[1]
    assert [serializers.sample(sample)["rewards"]["exact"] for sample in read] == [None, 0.0]


def test_explanations_reach_every_display(tmp_path: Path) -> None:
    step = StepRecord(6)
    step.sample_texts = {
        "0/7#0": SampleText("a", "bc", {"exact": "read b"}),
        "0/7#1": SampleText("a", "d"),
    }
    SamplePreviews(TEXTS, seed=1).add_previews(batch_of_two(), step)
    read = [parse_sample("", 6, json.loads(to_json(sample))) for sample in step.previews]
    assert [sample.explanations for sample in read] == [{"exact": "read b"}, {}]
    assert [serializers.sample(sample)["explanations"] for sample in read] == [{"exact": "read b"}, {}]
    shown = [capture_text(sample_view(sample)) for sample in read]
    assert "exact     read b" in shown[0] and "exact" not in shown[1]
    validated = ValidationSample("val@3/0", "a", "b", 1, False, {"a": 1.0}, {}, {"a": "read b"})
    [preview] = SamplePreviews(TEXTS, seed=1).from_responses([validated], 3, 3)
    assert preview["explanations"] == {"a": "read b"}
    assert json.loads(validated.to_json())["explanations"] == {"a": "read b"}


def test_previews_of_validation_samples_with_missing_scores() -> None:
    """Best and worst by the mean of the scores that apply; a single missing score is no total."""
    scores: list[dict[str, float | None]] = [
        {"a": 4.0, "b": None},
        {"a": None, "b": 1.0},
        {"a": None, "b": None},
    ]
    samples = [ValidationSample(f"val@3/{i}", "a", "b", 1, False, each, {}) for i, each in enumerate(scores)]
    shown = SamplePreviews(TEXTS, seed=1).from_responses(samples, step=3, version=3)
    assert [each["rewards"] for each in shown] == scores
    single = ValidationSample("val@3/0", "a", "b", 1, False, {"a": None}, {})
    assert SamplePreviews(TEXTS, seed=1).from_responses([single], 3, 3)[0]["reward"] is None
    names = {"a": "val/reward/a", "b": "val/b"}
    assert summarize_samples(samples, names, None) == {
        "val/reward/a": 4.0,
        "val/b": 1.0,
        "val/response_length": 1.0,
        "val/truncated_share": 0.0,
    }
    assert "val/b" not in summarize_samples([single], {"a": "val/b"}, None)


def test_a_step_of_rows_has_no_previews() -> None:
    step = StepRecord(1)
    SamplePreviews(TEXTS, seed=1).add_previews(batch_of_two(), step)
    assert step.previews == []


def test_best_worst_and_two_drawn_samples_are_chosen() -> None:
    rewards = [0.0, 3.0, 1.0, -2.0, 1.5, 0.5, 0.25, 0.75]
    places = choose_samples(rewards, seed=1, step=5)
    assert places[:2] == [1, 3]
    assert len(set(places)) == PREVIEWS_PER_STEP
    assert places == choose_samples(rewards, seed=1, step=5)
    assert len({tuple(choose_samples(rewards, seed=1, step=step)) for step in range(20)}) > 5
    assert choose_samples([1.0, 2.0], seed=1, step=5) == [0, 1]
    more = choose_samples(rewards, seed=1, step=5, count=6)
    assert more[:4] == places and len(set(more)) == 6
    assert sorted(choose_samples(rewards, seed=1, step=5, count=99)) == list(range(8))


def test_previews_of_validation_samples() -> None:
    sample = ValidationSample(
        "val@3/0", "a", "bc", 2, True, {"exact": 0.5}, {}, tokens=[1, 2], logprobs=[-1, -2]
    )
    (shown,) = SamplePreviews(TEXTS, seed=1).from_responses([sample], step=3, version=3)
    read = parse_sample("", 3, shown)
    assert (read.purpose, read.reward, read.rewards, read.truncated) == (
        "validation",
        0.5,
        {"exact": 0.5},
        True,
    )
    assert (read.tokens, read.token_values) == (("b", "c"), {"logprobs": (-1.0, -2.0)})
    assert "tokens" not in sample.to_json()


def test_long_responses_keep_their_ends() -> None:
    count = HEAD_TOKENS + TAIL_TOKENS + 100
    tokens, values = truncate_tokens(["x"] * count, {"kl": [i / 3 for i in range(count)]})
    assert len(tokens) == len(values["kl"]) == HEAD_TOKENS + TAIL_TOKENS + 1
    assert tokens[HEAD_TOKENS] == "[... 100 tokens left out ...]"
    assert values["kl"][HEAD_TOKENS] is None
    assert values["kl"][HEAD_TOKENS - 1 : HEAD_TOKENS + 2] == [pytest.approx(383 / 3, rel=1e-3), None, 161.3]
    text = truncate_text("y" * (MAX_CHARACTERS + 5))
    assert "[... 5 characters left out ...]" in text
    assert truncate_text("short") == "short"


def test_the_file_keeps_fewer_steps_and_stays_below_its_limit(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    sample_file = SampleFile(path, max_bytes=40_000)
    for step in range(1, 5000):
        sample_file.samples(step, 1, [{"prompt": "p" * 80, "response": "r"}])
    assert 36_000 < path.stat().st_size < 40_000
    steps = [int(line.partition(":")[2].partition(",")[0]) for line in path.read_text().splitlines()]
    assert steps[:100] == list(range(1, 101))
    assert steps == sorted(steps)
    assert steps[-1] > 1000
    half = len(steps) // 2
    assert all(step % 2 == 0 for step in steps[half + 5 :])


def test_a_partial_line_of_a_killed_driver_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    path.write_text('{"step":1,"prompt":"a"}\n{"step":2,"pro')
    SampleFile(path).samples(2, 1, [{"prompt": "b"}])
    assert path.read_text().splitlines()[-1] == '{"step":2,"prompt":"b"}'


def test_the_preview_of_an_episode_is_that_of_its_last_sequence() -> None:
    batch = batch_of_two()
    batch.sample_ids = ["0/7#3/0", "0/7#3/1"]
    batch.sequence_columns["sample"] = torch.tensor([0, 0])
    step = StepRecord(5)
    step.sample_texts = {"0/7#3": SampleText("a", "d")}
    SamplePreviews(TEXTS, seed=1).add_previews(batch, step)
    (preview,) = step.previews
    assert (preview["response"], preview["tokens"], preview["group_id"]) == ("d", ["d"], "0/7")
    assert (preview["reward"], preview["weight_version"]) == (-1.0, 5)
