"""Jobs whose responses are produced by agents, which call the policy with the client library of the OpenAI
API, through the real command.
"""

import os
import signal
from pathlib import Path

import psutil
import pytest

from support.guessing_game import STEPS, check_games, write_game_jobs
from support.running import RunningJobs, alive

pytestmark = pytest.mark.timeout(300)

#: Replaces the example's agent: each game of the first step waits after it until the test goes on.
HELD_AGENT = """
import asyncio
import os
import pathlib

from game import solve as play

FOLDER = pathlib.Path({folder!r})


async def solve(client, row):
    result = await play(client, row)
    (FOLDER / f"{{os.getpid()}}.ended").touch()
    async with asyncio.timeout(200):
        while not (FOLDER / "go").exists():
            await asyncio.sleep(0.05)
    return result
"""


def test_an_agent_plays_and_its_worker_may_be_killed(tmp_path: Path) -> None:
    """The episodes of the killed worker are generated again, and each sample is in its batch once."""
    signals = tmp_path / "signals"
    signals.mkdir()
    path = write_game_jobs(tmp_path / "agents", HELD_AGENT.format(folder=str(signals)))
    options = ["--param", f"DATA={tmp_path / 'agents' / 'data'}", "--no-dashboard"]
    with RunningJobs(path, tmp_path / "runs", *options) as run:
        run.wait_until("a game that is over", lambda: any(signals.glob("*.ended")), 200)
        killed = run.processes("guess-by-agent")["rollout-0"]["pid"]
        victims = [killed, *(child.pid for child in psutil.Process(killed).children(recursive=True))]
        assert {int(path.stem) for path in signals.glob("*.ended")} <= set(victims)
        os.kill(killed, signal.SIGKILL)
        run.wait_until("the end of the agents", lambda: not alive(victims), 30)
        (signals / "go").touch()
        assert run.end(250) == 0, run.output[-4000:]
        metrics, folder = run.steps("guess-by-agent"), run.folder("guess-by-agent")
    assert all(metrics[step]["rollout/logprob_gap_max"] < 1e-3 for step in range(1, STEPS + 1))
    check_games(folder)
