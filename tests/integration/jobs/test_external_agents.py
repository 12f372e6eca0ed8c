"""A job whose responses are produced by agents in processes that it did not start, through the real command
and the client library of the OpenAI API.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from support.guessing_game import PROMPTS, SAMPLES, STEPS, check_games, write_game_jobs
from support.running import RunningJobs

pytestmark = pytest.mark.timeout(300)

TOKEN = "the token of this test"

#: Replaces the example's agent: with KEEP, no game's reward is posted; each game is recorded.
AGENT = """
import asyncio
import os
import pathlib
import uuid

from game import solve as play

FOLDER = pathlib.Path({folder!r})


async def solve(client, row):
    result = await play(client, row)
    (FOLDER / f"{{os.getpid()}}-{{uuid.uuid4().hex}}").touch()
    if "KEEP" in os.environ:
        await asyncio.Event().wait()
    return result
"""


@contextmanager
def agents(folder: Path, url: str, name: str, **variables: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run the example's program for external agents until the block ends; its output is in NAME.txt."""
    environment = os.environ | variables
    with (folder / f"{name}.txt").open("wb") as output:
        command = [sys.executable, str(folder / "external.py"), url]
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=output, stderr=output)
        try:
            yield process
        finally:
            process.kill()
            process.wait(30)


def status_of(url: str, token: str) -> int:
    """Return the status of a request for a session with this token."""
    request = Request(f"{url}/sessions", b'{"wait_seconds": 0}', {"Authorization": f"Bearer {token}"})
    try:
        with urlopen(request, timeout=30) as response:
            return int(response.status)
    except HTTPError as error:
        return error.code


def test_agents_from_outside_play_and_one_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The games of the killed process fail, and their groups are played by the other one."""
    monkeypatch.setenv("AGENTS_TOKEN", TOKEN)
    games = tmp_path / "games"
    games.mkdir()
    folder = tmp_path / "agents"
    external = {"tokenVariable": "AGENTS_TOKEN", "sessionTimeoutSeconds": 4}
    source = AGENT.format(folder=str(games))
    path = write_game_jobs(folder, source, "external.yaml", external=external)
    options = ["--param", f"DATA={folder / 'data'}", "--no-dashboard"]
    with RunningJobs(path, tmp_path / "runs", *options) as run:
        address = run.folder("guess-from-outside") / "agents" / "rollout-0.json"
        run.wait_until("the endpoint of agents", address.exists, 200)
        url = json.loads(address.read_text())["url"]
        assert status_of(url, "another token") == 401
        with agents(folder, url, "keeping", KEEP="") as keeping:
            run.wait_until("a game that is kept", lambda: any(games.glob(f"{keeping.pid}-*")), 200)
            with agents(folder, url, "playing") as playing:
                keeping.send_signal(signal.SIGKILL)
                assert run.end(250) == 0, run.output[-4000:]
                assert playing.poll() is None, (folder / "playing.txt").read_text()
        job, metrics = run.folder("guess-from-outside"), run.steps("guess-from-outside")
    assert not address.exists()
    lost_games = len(list(games.glob(f"{keeping.pid}-*")))
    played = len(list(games.glob(f"{playing.pid}-*")))
    assert lost_games and played >= STEPS * PROMPTS * SAMPLES
    assert "neither called the policy nor sent a heartbeat for 4 s" in (job / "logs/driver.log").read_text()
    assert all(metrics[step]["rollout/logprob_gap_max"] < 1e-3 for step in range(1, STEPS + 1))
    check_games(job)
