"""`kubealign evaluate` on the checkpoints of a run, and on a model folder."""

import importlib.util
import json
from pathlib import Path

import pytest

from support.running import RunningJobs, run_command
from support.tiny_jobs import online_job, write_jobs, write_prompts, write_reward

pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train four steps with two checkpoints and a validation every two steps."""
    folder = tmp_path_factory.mktemp("command")
    data = {"prompts": {"source": {"path": str(write_prompts(folder))}}}
    validation = {
        "data": data,
        "everySteps": 2,
        "sampling": {"samplesPerPrompt": 2, "confidence": 0.9},
        "sets": [{"name": "more", "data": data, "everySteps": 1, "atStart": False, "rewards": ["letters"]}],
    }
    rloo = {"rloo": {"promptsPerStep": 4, "samplesPerPrompt": 2}}
    checkpoint = {"everySteps": 2}
    job = online_job(folder, "trained", rloo, maxSteps=4, checkpoint=checkpoint, validation=validation)
    with RunningJobs(write_jobs(folder, job), folder / "runs", "--no-dashboard") as run:
        assert run.end(200) == 0, run.output
    return folder / "runs"


def test_the_curve_of_a_run_is_that_of_its_own_validation(runs: Path) -> None:
    arguments = ("evaluate", "trained", "--steps", "2,4", "--runs-dir", str(runs))
    done = run_command(*arguments, timeout=250)
    assert done.code == 0, done.output
    rows = [line.split() for line in done.output.splitlines() if "val/reward/letters" in line]
    lines = [json.loads(line) for line in (runs / "trained" / "metrics.jsonl").read_text().splitlines()]
    trained = {line["step"]: line for line in lines if "val/truncated_share" in line}
    result = json.loads((runs / "trained-eval" / "result" / "metrics.json").read_text())["models"]
    assert [entry["step"] for entry in result] == [2, 4]
    for entry in result:
        assert {"val/response_length", "val/more/reward/letters"} < entry["metrics"].keys()
        assert entry["metrics"] == {name: trained[entry["step"]][name] for name in entry["metrics"]}
        bounds = [entry["metrics"][f"val/reward/letters{suffix}"] for suffix in ("", "/ci_low", "/ci_high")]
        shown = [f"{value:.4g}" for value in bounds]
        assert [str(entry["step"]), "val/reward/letters", *shown] in rows
    assert not (runs / "trained-eval-models").exists()
    again = run_command(*arguments, "--json", timeout=250)
    assert again.code == 0, again.output
    assert json.loads(again.output[again.output.index("\n{") :])["models"] == result


def test_a_model_is_measured_by_the_settings_of_the_command(runs: Path, tmp_path: Path) -> None:
    score = write_reward(runs.parent, name="short")
    scores = json.dumps([score])
    prompts = runs.parent / "prompts.jsonl"
    done = run_command(
        *("evaluate", str(runs / "trained" / "result"), "--runs-dir", str(tmp_path), "--name", "scored"),
        *("--set", f"spec.validation.data.prompts.source.path={prompts}"),
        *("--set", f"spec.validation.sampling.scores={scores}"),
        *("--set", "spec.rollout.sampling.maxTokens=4"),
        timeout=200,
    )
    assert done.code == 0, done.output
    (entry,) = json.loads((tmp_path / "scored" / "result" / "metrics.json").read_text())["models"]
    assert entry["step"] == 0
    assert {"val/short", "val/response_length"} <= entry["metrics"].keys()


@pytest.mark.skipif(importlib.util.find_spec("lm_eval") is None, reason="lm-eval is not installed here")
def test_checkpoints_are_measured_by_lm_eval(runs: Path, tmp_path: Path) -> None:
    """The metrics are those of lm-eval on a folder, measured once, and `kubealign plot` reads the record."""
    rows = [{"question": letter, "choices": ["a", "b"], "answer": 0} for letter in "abcdefgh"]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = {
        "task": "letters",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(tmp_path / "rows.jsonl")}},
        "test_split": "test",
        "output_type": "multiple_choice",
        "doc_to_text": "{{question}}",
        "doc_to_choice": "choices",
        "doc_to_target": "answer",
        "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
    }
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "letters.yaml").write_text(json.dumps(task))
    config = {"tasks": ["letters"], "include_path": "tasks", "model_args": {"dtype": "float32"}}
    (tmp_path / "lm_eval.yaml").write_text(json.dumps(config))
    options = ("--lm-eval", str(tmp_path / "lm_eval.yaml"), "--runs-dir", str(runs), "--json")
    done = run_command("evaluate", "trained", "--steps", "0,4", "--name", "tasks", *options, timeout=300)
    assert done.code == 0, done.output
    models = json.loads(done.output[done.output.index("\n{") :])["models"]
    assert [entry["step"] for entry in models] == [0, 4]
    for entry in models:
        assert entry["metrics"]["lm_eval/letters/acc"] * len(rows) in range(len(rows) + 1)
        assert entry["metrics"]["lm_eval/letters/acc/ci_low"] <= entry["metrics"]["lm_eval/letters/acc"]
    assert not (runs / "tasks-models").exists()
    again = run_command("evaluate", "trained", "--steps", "all", "--name", "tasks", *options, timeout=300)
    assert again.code == 0, again.output
    # Step 2 is new; the others were measured before.
    assert "export-2: started" in again.output
    assert not any(f"export-{step}: started" in again.output for step in (0, 4))
    every = json.loads(again.output[again.output.index("\n{") :])["models"]
    assert [entry for entry in every if entry["step"] != 2] == models
    result = runs / "trained" / "result"
    folder = run_command("evaluate", str(result), "--name", "folder", *options, timeout=200)
    assert folder.code == 0, folder.output
    (entry,) = json.loads(folder.output[folder.output.index("\n{") :])["models"]
    assert entry == {"step": 0, "metrics": models[1]["metrics"]}
    figure = tmp_path / "curve.svg"
    drawn = run_command(
        *("plot", str(runs / "tasks.json"), "-f", "lm_eval/letters/acc", "-o", str(figure)), timeout=60
    )
    assert drawn.code == 0, drawn.output
    assert figure.exists()


def test_what_is_missing_is_named(runs: Path, tmp_path: Path) -> None:
    missing = run_command("evaluate", "trained", "--steps", "3", "--runs-dir", str(runs), timeout=60)
    assert missing.code == 2
    assert "no checkpoint of step 3; it has those of 0, 2, 4" in " ".join(missing.output.split())
    result = str(runs / "trained" / "result")
    bare = run_command("evaluate", result, "--runs-dir", str(tmp_path), timeout=60)
    assert bare.code == 3
    assert "evaluate measures the validation: set validation.data" in " ".join(bare.output.split())
    assert not list(tmp_path.iterdir())
