"""Jobs that generate data through the real command: undisturbed, with processes killed, and as input of the
next job."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from support.running import RunningJobs
from support.tiny_jobs import PACED_LETTER_A, online_job, set_pace, sft_job, write_jobs, write_reward

ENTRY = {"promptsPerStep": 8, "samplesPerPrompt": 2}
STEPS = 5


def generate_job(folder: Path, name: str, entry: dict[str, Any], **spec: Any) -> dict[str, Any]:
    """Return a job with 40 prompts of two letters in steps of eight. The folder's pace file slows the rewards
    down."""
    set_pace(folder, 0)
    source = PACED_LETTER_A.format(file=str(folder / "pace"))
    parts = {"maxSteps": 100, "rewards": [write_reward(folder, source)]}
    job = online_job(folder, name, {"generate": entry}, **(parts | spec))
    for trained in ("trainer", "checkpoint"):
        del job["spec"][trained]
    return job


def rows(run: RunningJobs, name: str) -> list[dict[str, Any]]:
    text = (run.folder(name) / "result" / "data.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> RunningJobs:
    """Run three jobs: all samples, the best and the worst ones, and training on the first job's rows."""
    folder: Path = tmp_path_factory.mktemp("undisturbed")
    best = ENTRY | {"samplesPerPrompt": 4, "keep": "BestAndWorst"}
    data = {"demonstrations": {"source": {"job": {"name": "all"}}}}
    file = write_jobs(
        folder,
        generate_job(folder, "all", ENTRY),
        generate_job(folder, "pairs", best),
        sft_job(folder, "reader", maxSteps=2, data=data),
    )
    with RunningJobs(file, folder / "runs") as run:
        assert run.end(150) == 0, run.output
    return run


def test_every_prompt_has_its_samples_in_the_prompts_order(undisturbed: RunningJobs) -> None:
    generated = rows(undisturbed, "all")
    letters = "abcdefgh"
    prompts = [letters[number // 8 % 8] + letters[number % 8] for number in range(40)]
    assert [row["prompt"] for row in generated] == [prompt for prompt in prompts for _ in range(2)]
    for row in generated:
        share = row["response"].count("a") / max(1, len(row["response"]))
        assert row["reward"] == pytest.approx(share, abs=1e-6)
        assert row["reward.letters"] == pytest.approx(share, abs=1e-12)
        assert isinstance(row["truncated"], bool)
    figures = undisturbed.steps("all")
    assert sorted(figures) == list(range(1, STEPS + 1))
    assert figures[STEPS]["data/rows"] == 80
    assert "trainer" not in {
        path.stem.rpartition("-")[0] for path in (undisturbed.folder("all") / "logs").iterdir()
    }


def test_the_best_and_the_worst_of_a_prompt_are_a_preference(undisturbed: RunningJobs) -> None:
    generated = rows(undisturbed, "pairs")
    assert 5 < len(generated) <= 40
    for row in generated:
        assert row["chosen_rating"] > row["rejected_rating"]
        assert row["chosen_rating"] == pytest.approx(
            row["chosen"].count("a") / max(1, len(row["chosen"])), abs=1e-6
        )
    figures = undisturbed.steps("pairs")[STEPS]
    assert figures["data/left_out/alike"] == 40 - len(generated)


def test_another_job_learns_from_the_rows(undisturbed: RunningJobs) -> None:
    report = json.loads((undisturbed.folder("reader") / "prepared" / "report.json").read_text())
    assert report["train"]["rows_read"] == 80
    assert sorted(undisturbed.steps("reader")) == [1, 2]


def test_killed_at_any_moment_nothing_is_lost_and_nothing_written_twice(
    tmp_path: Path, undisturbed: RunningJobs
) -> None:
    """Kill the rollout worker and the driver in the middle of a step, while rewards are slow; then stop all
    processes and start the job again."""
    job = generate_job(tmp_path, "all", ENTRY)
    set_pace(tmp_path, 0.3)
    with RunningJobs(write_jobs(tmp_path, job), tmp_path / "runs") as run:
        run.wait_for_step("all", 1)
        run.kill("all", "rollout-0")
        # The new driver requests the prompts again: otherwise those of the dead worker would only be
        # redelivered after the acknowledgement deadline.
        run.kill("all", "driver")
        run.wait_for_step("all", 3)
        run.send(signal.SIGTERM)
        assert run.end(90) != 0
        making = run.folder("all") / "making"
        state = json.loads((making / "state.json").read_text())
        assert 3 <= state["step"] < STEPS, "stopped in the middle"
        assert state["rows"] == 16 * state["step"]
        set_pace(tmp_path, 0)
        run.start()
        assert run.end(120) == 0, run.output
        assert rows(run, "all") == rows(undisturbed, "all")
        assert {line["fence"] for line in run.metrics("all")} == {1, 2, 3}
