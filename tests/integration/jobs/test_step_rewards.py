"""Job with GRPO that credits the steps that a function rewards: recorded rewards are at their last tokens."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from kubealign.spec.algorithms import Algorithm
from kubealign_services.algorithms.factory import make_algorithm
from kubealign_services.data.prepared import load_prepared
from support.batches import slow_spans
from support.recorded_batches import recorded_batches
from support.running import RunningJobs
from support.tiny_jobs import online_job, write_jobs, write_reward

pytestmark = pytest.mark.timeout(240)

STEPS = 2
ALGORITHM: dict[str, Any] = {"grpo": {"promptsPerStep": 4, "samplesPerPrompt": 4, "credit": "Steps"}}
#: Separator: a letter of the alphabet, which an untrained policy samples often.
SEPARATOR = "c"
#: Rewards each step by its share of the letter a.
FUNCTION = """
async def reward(prompts, responses, steps):
    return [{"steps": [step.count("a") / len(step) for step in each]} for each in steps]
"""


def step_rewards(pieces: Sequence[str]) -> list[tuple[int, float]]:
    """Return the index of each step's last token, and its reward, by a loop over the texts of the tokens."""
    rewards: list[tuple[int, float]] = []
    step = ""
    for index, piece in enumerate(pieces):
        if piece != SEPARATOR:
            step += piece
        if step.strip() and (piece == SEPARATOR or index == len(pieces) - 1):
            rewards.append((index, step.count("a") / len(step)))
        elif piece == SEPARATOR and rewards:
            rewards[-1] = (index, rewards[-1][1])
        if piece == SEPARATOR:
            step = ""
    return rewards


def test_steps_are_rewarded_at_their_last_tokens(tmp_path: Path) -> None:
    job = online_job(
        tmp_path,
        "steps",
        ALGORITHM,
        maxSteps=STEPS,
        rewards=[write_reward(tmp_path, FUNCTION, "prm") | {"steps": {"separator": SEPARATOR}}],
        rollout={"engine": {"torch": {"maxSequences": 64}}, "sampling": {"maxTokens": 16}},
        checkpoint={"everySteps": 2, "recordBatches": True},
    )
    with RunningJobs(write_jobs(tmp_path, job), tmp_path / "runs", "--no-dashboard") as run:
        assert run.end(150) == 0, run.output[-4000:]
        folder = run.folder("steps")
    algorithm = make_algorithm(Algorithm.model_validate(ALGORITHM))
    tokenizer = load_prepared(folder).tokenizer
    ends = 0
    for batch in recorded_batches(folder, STEPS):
        expected = [0.0] * len(batch.tokens)
        marks = [0] * len(batch.tokens)
        for span in slow_spans(batch):
            pieces = [tokenizer.decode([token]) for token in batch.tokens[span].tolist()]
            rewards = step_rewards([piece for piece in pieces if piece != tokenizer.eos_token])
            for position, (index, reward) in enumerate(rewards):
                # The last step has the rest of the response, the end token included.
                token = span[-1] if position == len(rewards) - 1 else span[index]
                expected[token], marks[token] = reward, 1
        assert batch.token("turn_rewards").tolist() == pytest.approx(expected, abs=1e-6)
        assert batch.token("turn_ends").tolist() == marks
        ends += sum(marks)
        # Advantages, which are added after the batch is recorded, differ between tokens of a response.
        algorithm.advantages(batch, {})
        advantages = batch.token("advantages")
        assert any(len(set(advantages[span].tolist())) > 1 for span in slow_spans(batch))
    assert ends > STEPS * 16, "no response has several steps"
