"""Small jobs of the example whose agents guess a number, and the rewards that its games may have."""

import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from kubealign_services.batch.reward_columns import read_scores
from kubealign_services.data.prepared import load_prepared
from support.doc_blocks import ROOT
from support.recorded_batches import recorded_batches

PROMPTS, SAMPLES, STEPS = 4, 4, 2


def write_game_jobs(folder: Path, agent: str, file: str = "jobs.yaml", **fields: Any) -> Path:
    """Write the example with a small batch and another agent. Return the file.

    Args:
        agent: Source of the agent, which may import the example's from `game`.
        fields: Fields of rollout.workflow.agent to replace.
    """
    shutil.copytree(ROOT / "examples" / "agents", folder, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "guess.py").rename(folder / "game.py")
    (folder / "guess.py").write_text(agent)
    make_data = ROOT / "examples" / "environments" / "make_data.py"
    subprocess.run([sys.executable, str(make_data), "data"], cwd=folder, check=True, timeout=60)
    path = folder / file
    job = yaml.safe_load(path.read_text())
    job["spec"] |= {
        "maxSteps": STEPS,
        "algorithm": {"grpo": {"promptsPerStep": PROMPTS, "samplesPerPrompt": SAMPLES}},
        "checkpoint": {"everySteps": 1, "recordBatches": True},
    }
    job["spec"]["rollout"]["workflow"]["agent"] |= fields
    path.write_text(yaml.safe_dump(job))
    return path


def check_games(folder: Path) -> None:
    """Check that each sample of a job is in its batch once, with the reward of its game."""
    tokenizer = load_prepared(folder).tokenizer
    for batch in recorded_batches(folder, STEPS):
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
