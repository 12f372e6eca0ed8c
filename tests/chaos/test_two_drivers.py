"""Two whole drivers on one run directory, at every failpoint that a driver reaches.

The first is stopped at the failpoint, as on a node that stands still. The second, which the supervisor does
not know, takes over. The first wakes while the second trains, or after the second has ended the job. Its
supervisor then starts a third driver, which replaces the second or finds the job at its end.
"""

import json
from enum import StrEnum
from pathlib import Path

import pytest

from kubealign.process_settings import ExitCode
from kubealign_services.checkpoints.fence import latest_fence
from kubealign_services.checkpoints.history import read_history
from kubealign_services.runtime.failpoints import FILE, Action, Failpoint
from support.chaos.checker import check_history, check_metrics, check_replay
from support.chaos.job import PROMPTS_PER_STEP
from support.chaos.second_driver import SecondDriver, StoppedDriver
from support.running import RunningJobs, left_running
from support.tiny_jobs import PACED_LETTER_A, online_job, set_pace, write_jobs, write_prompts, write_reward

STEPS = 8
#: Timeout of each wait, in seconds.
TIMEOUT = 600.0
#: Failpoints that a driver reaches: all but those of trainer ranks and of the workers that receive weights.
FAILPOINTS = [name for name in Failpoint if not name.startswith(("trainer-", "weights-", "parent-"))]


class Wake(StrEnum):
    """When the first driver goes on."""

    WHILE_THE_SECOND_TRAINS = "while-the-second-trains"
    AFTER_THE_JOB = "after-the-job"


def hit_of(name: Failpoint) -> int:
    """Return how often the driver reaches a failpoint until it stops: amid the job where possible."""
    if name.startswith("bus-"):
        return 12
    if name.startswith("checkpoint-"):
        return 2
    return 3 if name.startswith(("step-", "history-", "record-")) else 1


def write_job(folder: Path, name: str) -> Path:
    """Write a job of exactly one epoch, whose steps take half a second at least. Return the file."""
    job = online_job(
        folder,
        name,
        {"grpo": {"promptsPerStep": PROMPTS_PER_STEP, "samplesPerPrompt": 2}},
        maxSteps=STEPS,
        checkpoint={"everySteps": 2, "keep": 1, "recordBatches": True},
        lifecycle={"gracePeriodSeconds": 10},
    )
    spec = job["spec"]
    spec["data"] = {"prompts": {"source": {"path": str(write_prompts(folder, STEPS * PROMPTS_PER_STEP))}}}
    spec["rewards"] = [write_reward(folder, PACED_LETTER_A.format(file=str(set_pace(folder, 0.5))))]
    return write_jobs(folder, job)


def is_training(folder: Path, failpoint: Failpoint) -> bool:
    """Return True once the second driver has taken over and, unless nothing is left to train, made a step."""
    if failpoint.startswith("export-"):
        return latest_fence(folder) > 1
    return any(line.fence > 1 for line in read_history(folder))


@pytest.mark.timeout(3000)
@pytest.mark.parametrize("wake", list(Wake))
@pytest.mark.parametrize("failpoint", FAILPOINTS)
def test_a_replaced_driver_does_no_damage(
    tmp_path: Path, failpoint: Failpoint, wake: Wake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    jobs = write_job(tmp_path, "pair")
    folder = tmp_path / "runs" / "pair"
    folder.mkdir(parents=True)
    entry = {
        "name": failpoint,
        "action": Action.STOP,
        "process": "driver",
        "hit": hit_of(failpoint),
        "seconds": 4 * TIMEOUT,
    }
    (folder / FILE).write_text(json.dumps([entry]))
    with RunningJobs(jobs, tmp_path / "runs") as run:
        with StoppedDriver(run, "pair", TIMEOUT) as first, SecondDriver(folder) as second:
            if wake is Wake.AFTER_THE_JOB:
                assert second.end(TIMEOUT) == ExitCode.DONE, second.log[-4000:]
                first.wake()
            else:
                run.wait_until("the second driver", lambda: is_training(folder, failpoint), TIMEOUT)
                first.wake()
                assert second.end(TIMEOUT) in (ExitCode.DONE, ExitCode.REPLACED), second.log[-4000:]
        assert run.end(TIMEOUT) == 0, run.output
    check_replacement(folder)
    check_history(folder, STEPS)
    check_metrics(folder, STEPS)
    check_replay(folder, STEPS)
    assert left_running(tmp_path) == {}


def check_replacement(folder: Path) -> None:
    """Check that the first driver ended by itself as a replaced one, and that nothing else was restarted."""
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    restarts = [event["message"] for event in events if "starting" in event["message"]]
    assert len(restarts) == 1, restarts
    assert restarts[0].startswith(f"driver ended with code {ExitCode.REPLACED:d}; starting driver again")
    assert latest_fence(folder) > 2
