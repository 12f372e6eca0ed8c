"""PPO jobs with and without overlap: the same samples, batches and metrics."""

import json
from pathlib import Path
from typing import Any

import pytest

from support.running import RunningJobs
from support.tiny_jobs import FROM_CONFIG, online_job, write_jobs

PPO: dict[str, Any] = {
    "ppo": {"promptsPerStep": 8, "samplesPerPrompt": 1, "kl": {"fixed": {"coefficient": 0.05}}}
}
NO_OVERLAP = {"scoreOnArrival": False, "parallelScoring": False, "parallelTraining": False}


def numbers(run: RunningJobs, name: str) -> list[dict[str, float]]:
    """Return the metrics of each step that do not depend on time."""
    return [
        {key: value for key, value in line.items() if key != "time" and "second" not in key}
        for line in run.metrics(name)
    ]


def texts(run: RunningJobs, name: str) -> list[tuple[int, str, str]]:
    """Return step, prompt and response of each sample that displays get."""
    lines = (run.folder(name) / "samples.jsonl").read_text().splitlines()
    samples = [json.loads(line) for line in lines]
    return sorted((sample["step"], sample["prompt"], sample["response"]) for sample in samples)


@pytest.mark.timeout(240)
def test_the_same_metrics_without_overlap(tmp_path: Path) -> None:
    jobs = [
        online_job(tmp_path, name, PPO, maxSteps=2, critic={"model": FROM_CONFIG}, **more)
        for name, more in (("overlapping", {}), ("in-turn", {"overlap": NO_OVERLAP}))
    ]
    with RunningJobs(write_jobs(tmp_path, *jobs), tmp_path / "runs") as run:
        assert run.end(200) == 0, run.output
    overlapping, in_turn = numbers(run, "overlapping"), numbers(run, "in-turn")
    assert len(overlapping) == len(in_turn) == 2
    for line, other in zip(overlapping, in_turn, strict=True):
        assert line.keys() == other.keys()
        # The order in which samples arrive changes the last bits of what models compute of them.
        assert other == pytest.approx(line, rel=1e-4, abs=1e-6), "metrics differ"
    overlapping_texts, in_turn_texts = texts(run, "overlapping"), texts(run, "in-turn")
    assert overlapping_texts and overlapping_texts == in_turn_texts
