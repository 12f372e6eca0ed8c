"""Jobs whose responses are produced by agents, which call the policy with the client library of the OpenAI
API, through the real command.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import psutil
import pytest
import yaml

from kubealign_services.batch.reward_columns import read_scores
from kubealign_services.data.prepared import load_prepared
from support.doc_blocks import ROOT
from support.recorded_batches import recorded_batches
from support.running import RunningJobs, alive

pytestmark = pytest.mark.timeout(300)

PROMPTS, SAMPLES, STEPS = 4, 4, 2

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


def write_jobs(folder: Path, signals: Path) -> Path:
    """Write the example with a waiting agent and a small batch. Return the file."""
    shutil.copytree(ROOT / "examples" / "agents", folder, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "guess.py").rename(folder / "game.py")
    (folder / "guess.py").write_text(HELD_AGENT.format(folder=str(signals)))
    make_data = ROOT / "examples" / "environments" / "make_data.py"
    subprocess.run([sys.executable, str(make_data), "data"], cwd=folder, check=True, timeout=60)
    path = folder / "jobs.yaml"
    job = yaml.safe_load(path.read_text())
    job["spec"] |= {
        "maxSteps": STEPS,
        "algorithm": {"grpo": {"promptsPerStep": PROMPTS, "samplesPerPrompt": SAMPLES}},
        "checkpoint": {"everySteps": 1, "recordBatches": True},
    }
    path.write_text(yaml.safe_dump(job))
    return path


def possible_rewards(response: str) -> list[float]:
    """Return the rewards that a game may have, from its text: guesses, each but the last followed by the
    game's answer.
    """
    # One token each; a special one, such as <pad>, is written out.
    tokens = re.findall(r"<[a-z]+>|.", response, re.DOTALL)
    *wrong, last = tokens[::2]
    assert all(guess.isdecimal() for guess in wrong), response
    assert set(tokens[1::2]) <= {"<", ">"}, response
    lasts = [1.0, -0.1] if last.isdecimal() else [-1.0]
    return [pytest.approx(value - 0.1 * len(wrong), abs=1e-6) for value in lasts]


def test_an_agent_plays_and_its_worker_may_be_killed(tmp_path: Path) -> None:
    """The episodes of the killed worker are generated again, and each sample is in its batch once."""
    signals = tmp_path / "signals"
    signals.mkdir()
    path = write_jobs(tmp_path / "agents", signals)
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
    tokenizer = load_prepared(folder).tokenizer
    for step, batch in enumerate(recorded_batches(folder, STEPS), start=1):
        assert metrics[step]["rollout/logprob_gap_max"] < 1e-3
        assert len(set(batch.sample_ids)) == len(batch.sample_ids) == PROMPTS * SAMPLES
        assert set(Counter(batch.sequence("group").tolist()).values()) == {SAMPLES}
        for index, reward in enumerate(read_scores(batch, "game")):
            sequence = batch.select([index])
            mask = sequence.token("loss_mask").tolist()
            first = mask.index(1)
            response = tokenizer.decode(sequence.tokens[first:])
            assert reward in possible_rewards(response), response
            # Guesses are the policy's, answers the game's.
            assert mask[first:] == [1 - position % 2 for position in range(len(mask) - first)]
