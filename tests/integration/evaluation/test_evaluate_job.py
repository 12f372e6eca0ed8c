"""Jobs that evaluate models through the real command: several models, and an evaluation that is stopped."""

import json
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from support.running import RunningJobs
from support.tiny_jobs import FROM_CONFIG, online_job, set_pace, write_jobs, write_prompts, write_reward

PROMPTS = 40
#: Name of the set, whose prompts have three letters.
SET = "triples"
#: Many, so that the rewards score them in several calls.
SAMPLES = 8
STEPS = 2

#: The share of the letter a; a call records its prompts, and sleeps for the file's seconds for each of them.
RECORDED_LETTER_A = """
import json
import pathlib
import time

def reward(prompts, responses, **columns):
    time.sleep(float(pathlib.Path({pace!r}).read_text()) * len(prompts))
    with pathlib.Path({calls!r}).open("a") as calls:
        calls.writelines(json.dumps(prompt) + "\\n" for prompt in prompts)
    return [response.count("a") / max(1, len(response)) for response in responses]
"""

#: The number of different responses to a prompt, which are scored together.
RECORDED_VARIETY = """
import json
import pathlib

def reward(prompts, responses):
    with pathlib.Path({calls!r}).open("a") as calls:
        calls.writelines(json.dumps(prompt) + "\\n" for prompt in prompts)
    return [len(set(responses)) / len(responses)] * len(responses)
"""


def held_out_set(folder: Path) -> dict[str, Any]:
    """Return a set that is scored by the reward of the job, and by a score of all responses to a prompt."""
    rows = [{"prompt": f"{first}{second}h"} for first in "abcde" for second in "abcdefgh"]
    path = folder / f"{SET}.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = RECORDED_VARIETY.format(calls=str(folder / "group-calls"))
    variety = write_reward(folder, source, "variety") | {"scope": "Group"}
    return {
        "name": SET,
        "data": {"prompts": {"source": {"path": str(path)}}},
        "sampling": {"samplesPerPrompt": SAMPLES, "scores": [variety]},
        "rewards": ["letters"],
    }


def validation(folder: Path) -> dict[str, Any]:
    sampling = {"samplesPerPrompt": SAMPLES, "passAt": [1, 2], "passThreshold": 0.25, "confidence": 0.9}
    data = {"prompts": {"source": {"path": str(write_prompts(folder))}}}
    return {"data": data, "sampling": sampling, "sets": [held_out_set(folder)]}


def recorded_reward(folder: Path) -> dict[str, Any]:
    pace = set_pace(folder, 0)
    return write_reward(folder, RECORDED_LETTER_A.format(pace=str(pace), calls=str(folder / "calls")))


def evaluate_job(folder: Path, name: str, entry: dict[str, Any]) -> dict[str, Any]:
    """Return a job that evaluates the policy with random weights, and the checkpoints of the entry."""
    job = online_job(folder, name, {"evaluate": entry}, validation=validation(folder))
    # Written after the job's own reward function, into the same file.
    job["spec"]["rewards"] = [recorded_reward(folder)]
    for trained in ("trainer", "checkpoint", "maxSteps", "data"):
        del job["spec"][trained]
    return job


def calls(folder: Path, name: str = "calls") -> Counter[str]:
    """Return the number of samples that were scored of each prompt."""
    return Counter(json.loads(line) for line in (folder / name).read_text().splitlines())


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> RunningJobs:
    """Train a policy with validation, then evaluate its first and its last weights."""
    folder: Path = tmp_path_factory.mktemp("undisturbed")
    rloo = {"rloo": {"promptsPerStep": 8, "samplesPerPrompt": 2}}
    trained = online_job(folder, "trained", rloo, maxSteps=STEPS, validation=validation(folder))
    entry = {"checkpoints": [{"step": STEPS, "model": {"job": {"name": "trained"}}}]}
    file = write_jobs(folder, trained, evaluate_job(folder, "evaluated", entry))
    with RunningJobs(file, folder / "runs") as run:
        assert run.end(200) == 0, run.output
    return run


def test_the_metrics_are_those_of_the_run_that_made_the_weights(undisturbed: RunningJobs) -> None:
    trained = {line["step"]: line for line in undisturbed.metrics("trained") if "val/truncated_share" in line}
    evaluated = {line["step"]: line for line in undisturbed.metrics("evaluated")}
    assert sorted(evaluated) == sorted(trained) == [0, STEPS]
    for step, line in evaluated.items():
        measured = {name: value for name, value in line.items() if name.startswith("val/")}
        assert measured == {name: value for name, value in trained[step].items() if name in measured}
        assert {"val/reward/letters/pass@2", "val/reward/letters/ci_low"} < measured.keys()
        assert {f"val/{SET}/reward/letters", f"val/{SET}/variety"} < measured.keys()
    for name in ("val/reward/letters", f"val/{SET}/reward/letters"):
        assert evaluated[0][name] != evaluated[STEPS][name]


def test_the_result_names_each_model_with_its_metrics(undisturbed: RunningJobs) -> None:
    folder = undisturbed.folder("evaluated")
    models = json.loads((folder / "result" / "metrics.json").read_text())["models"]
    assert [entry["step"] for entry in models] == [0, STEPS]
    assert models[1]["model"] == {"job": {"name": "trained"}}
    assert models[0]["model"]["config"]["architecture"]["model_type"] == "llama"
    (line,) = (line for line in undisturbed.metrics("evaluated") if line["step"] == STEPS)
    assert models[1]["metrics"] == {name: value for name, value in line.items() if name.startswith("val/")}
    for step in (0, STEPS):
        for path in (f"step-{step:06d}.jsonl", f"{SET}/step-{step:06d}.jsonl"):
            samples = (folder / "validation" / path).read_text()
            assert samples == (undisturbed.folder("trained") / "validation" / path).read_text()
            assert len(samples.splitlines()) == PROMPTS * SAMPLES
    assert not list((folder / "evaluation").rglob("responses-*"))
    assert "trainer" not in {path.stem.rpartition("-")[0] for path in (folder / "logs").iterdir()}


@pytest.mark.parametrize("stopped_in", ["", SET], ids=["own-rows", "set"])
def test_a_stopped_evaluation_goes_on_and_measures_nothing_twice(
    tmp_path: Path, undisturbed: RunningJobs, stopped_in: str
) -> None:
    """Kill the driver in the middle of the second model, in the rows of validation.data or of the set, then
    stop all processes there, and start again.
    """
    weights = {"path": str(undisturbed.folder("trained") / "result")}
    job = evaluate_job(tmp_path, "evaluated", {"checkpoints": [{"step": STEPS, "model": weights}]})
    job["spec"]["policy"] = {"model": FROM_CONFIG}
    with RunningJobs(write_jobs(tmp_path, job), tmp_path / "runs") as run:
        saved = run.folder("evaluated") / "evaluation" / stopped_in / f"responses-{STEPS:06d}.jsonl"

        def saved_prompts() -> list[str]:
            lines = saved.read_text().splitlines(keepends=True) if saved.exists() else []
            return [json.loads(line)[0]["prompt"] for line in lines if line.endswith("\n")]

        run.wait_until("the first model", lambda: bool(run.metrics("evaluated")), 120)
        set_pace(tmp_path, 0.04)
        run.wait_until("responses to the second model", lambda: bool(saved_prompts()), 60)
        run.kill("evaluated", "driver")
        first = saved_prompts()
        run.wait_until("more of them", lambda: len(saved_prompts()) > len(first), 60)
        run.send(signal.SIGTERM)
        assert run.end(90) != 0
        second = saved_prompts()
        assert len(first) < len(second) < PROMPTS, "stopped in the middle"
        before, together = calls(tmp_path), calls(tmp_path, "group-calls") if stopped_in else Counter()
        set_pace(tmp_path, 0)
        run.start()
        assert run.end(120) == 0, run.output
        assert len({line["fence"] for line in run.metrics("evaluated")}) == 2
        assert [line["step"] for line in run.metrics("evaluated")] == [0, STEPS]
        after = calls(tmp_path)
        if stopped_in:
            own = [prompt for prompt in after if len(prompt) == 2]
            assert [after[prompt] for prompt in own] == [2 * SAMPLES] * PROMPTS
            together_after = calls(tmp_path, "group-calls")
            assert [together_after[prompt] for prompt in first] == [2 * SAMPLES] * len(first)
            assert all(together_after[prompt] == together[prompt] for prompt in second)
        assert all(after[prompt] == before[prompt] for prompt in second)
        assert after.keys() - set(second), "others were scored after the start"
        result = run.folder("evaluated") / "result" / "metrics.json"
        undisturbed_result = undisturbed.folder("evaluated") / "result" / "metrics.json"
        metrics = [
            [entry["metrics"] for entry in json.loads(path.read_text())["models"]]
            for path in (result, undisturbed_result)
        ]
        assert metrics[0] == metrics[1]
