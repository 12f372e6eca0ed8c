"""A job whose episodes are played in environment workers: one is killed, and they are scaled while the job
runs."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from support.running import RunningJobs, alive
from support.tiny_jobs import online_job, write_jobs

pytestmark = pytest.mark.timeout(240)

STEPS = 3
PROMPTS, SAMPLES = 4, 2
#: A game that records the worker of each episode. The steps of the first N episodes return, where N is the
#: number in the file `allowed`.
GAME = """
import asyncio
import itertools
import os
import pathlib

from kubealign_services.environments import StepResult

FOLDER = pathlib.Path({folder!r})


def worker():
    # The id of the environment worker: the parent of the supervisor that is this process's parent.
    status = pathlib.Path(f"/proc/{{os.getppid()}}/stat").read_text()
    return status.rpartition(")")[2].split()[1]


def ordinal():
    # The number of episodes that have begun before, in all processes.
    for number in itertools.count():
        try:
            (FOLDER / f"{{number}}.begun").touch(exist_ok=False)
            return number
        except FileExistsError:
            pass


class Letters:
    async def reset(self, seed, columns):
        (FOLDER / f"{{worker()}}.worker").touch()
        self.number = ordinal()

    async def step(self, action):
        while self.number >= int((FOLDER / "allowed").read_text()):
            await asyncio.sleep(0.02)
        return StepResult(reward=action.count("a"), done=True, metrics={{"letters": len(action)}})
"""


def allow(episodes: Path, count: int) -> None:
    """Let the first `count` episodes end."""
    draft = episodes / "draft"
    draft.write_text(str(count))
    draft.rename(episodes / "allowed")


def write_job(folder: Path, episodes: Path) -> Path:
    episodes.mkdir()
    allow(episodes, 0)
    game = folder / "game.py"
    game.write_text(GAME.format(folder=str(episodes)))
    environment = {"function": {"file": {"path": str(game), "name": "Letters"}}}
    job = online_job(
        folder,
        "played",
        {
            "rloo": {
                "promptsPerStep": PROMPTS,
                "samplesPerPrompt": SAMPLES,
                "kl": {"fixed": {"coefficient": 0.0}},
            }
        },
        maxSteps=STEPS,
        rewards=[{"name": "letters", "episode": {}}],
        rollout={
            "engine": {"torch": {"maxSequences": 64}},
            "sampling": {"maxTokens": 4},
            "workflow": {"environment": environment},
            "environmentReplicas": 2,
        },
        checkpoint={"everySteps": 1},
        lifecycle={"gracePeriodSeconds": 4},
    )
    return write_jobs(folder, job)


def workers_of(episodes: Path) -> set[int]:
    """Return the process ids of the environment workers that have begun an episode."""
    return {int(path.stem) for path in episodes.glob("*.worker")}


def test_a_job_goes_on_without_a_killed_environment_worker(tmp_path: Path) -> None:
    episodes = tmp_path / "episodes"
    with RunningJobs(write_job(tmp_path, episodes), tmp_path / "runs", "--no-dashboard") as run:
        run.wait_until("an episode in each worker", lambda: len(workers_of(episodes)) == 2, 120)
        killed = run.processes("played")["environment-1"]["pid"]
        assert workers_of(episodes) == {killed, run.processes("played")["environment-0"]["pid"]}
        victims = [killed, *(child.pid for child in psutil.Process(killed).children(recursive=True))]
        os.kill(killed, signal.SIGKILL)
        run.wait_until("the end of its environments", lambda: not alive(victims), 30)
        # The episodes of the first step, and each once more; not enough for all steps.
        allow(episodes, 2 * PROMPTS * SAMPLES)
        run.wait_for_step("played", 1)
        run.scale("played", 3, "environment")
        assert "environment-2" in run.processes("played")
        run.scale("played", 1, "environment")
        names = {name for name in run.processes("played") if name.startswith("environment")}
        assert names == {"environment-0"}
        allow(episodes, 1_000_000)
        assert run.end(120) == 0, run.output[-4000:]
        steps, folder = run.steps("played"), run.folder("played")
    assert sorted(steps) == [*range(1, STEPS + 1)]
    assert steps[STEPS]["rollout/turns"] == 1
    samples: list[dict[str, Any]] = [
        json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()
    ]
    assert len(samples) >= 8
    for sample in samples:
        assert sample["rewards"]["letters"] == sample["response"].count("a")
    assert "was lost during the episode" in (folder / "logs" / "driver.log").read_text()
