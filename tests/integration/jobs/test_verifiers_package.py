"""A job whose responses are rollouts of an environment of the package verifiers, through the real command."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kubealign_services.batch.reward_columns import read_scores
from kubealign_services.data.prepared import load_prepared
from support.chat_templates import FAMILIES
from support.environment_packages import needs_package
from support.recorded_batches import recorded_batches
from support.running import RunningJobs
from support.tiny_jobs import ARCHITECTURE, online_job, write_jobs

pytestmark = [needs_package("verifiers", "verifiers"), pytest.mark.timeout(280)]

FAMILY = FAMILIES["smollm2"]
PROMPTS, SAMPLES = 2, 2

#: The reward is the length of the answer, which differs between samples of a policy without any training.
LENGTHS = """
import verifiers.v1 as vf

__all__ = ["Lengths"]


class Length(vf.Task[vf.TaskData]):
    @vf.reward
    async def characters(self, trace) -> float:
        return float(len(trace.last_reply))

    @vf.metric
    async def questions(self, trace) -> float:
        return float(len(trace.messages) - trace.num_turns)


class Lengths(vf.Taskset[Length]):
    def load(self):
        for number in ("one", "two", "three"):
            yield Length(vf.TaskData(prompt=f"what is {number}"), self.config.task)
"""


def lengths_job(folder: Path) -> Path:
    """Write a GRPO job of one step with the environment, and the rows of its tasks. Return its file."""
    FAMILY.tokenizer().save_pretrained(folder / "tokenizer")
    (folder / "lengths.py").write_text(LENGTHS)
    tokenizer = {"path": str(folder / "tokenizer")}
    architecture = ARCHITECTURE | {"max_position_embeddings": 512}
    rows = folder / "tasks.jsonl"
    job = online_job(
        folder,
        "lengths",
        {"grpo": {"promptsPerStep": PROMPTS, "samplesPerPrompt": SAMPLES}},
        maxSteps=1,
        policy={"model": {"config": {"architecture": architecture, "tokenizer": tokenizer}}},
        data={"prompts": {"source": {"path": str(rows)}, "format": {"chat": {}}}},
        rewards=[{"name": "talk", "episode": {}}],
        rollout={
            "sampling": {"maxTokens": 12},
            "workflow": {"agent": {"verifiers": {"taskset": "lengths", "folder": str(folder)}}},
        },
        checkpoint={"everySteps": 1, "recordBatches": True},
    )
    path = write_jobs(folder, job)
    command = [sys.executable, "-m", "kubealign_services.agents.verifiers.rows", str(path)]
    rows.write_bytes(subprocess.run(command, check=True, timeout=120, stdout=subprocess.PIPE).stdout)
    return path


def test_a_job_trains_on_the_rollouts_of_an_environment(tmp_path: Path) -> None:
    """The prompts are the environment's, and each response has the reward that its text has."""
    path = lengths_job(tmp_path)
    prompts = [json.loads(line)["messages"] for line in (tmp_path / "tasks.jsonl").read_text().splitlines()]
    assert prompts[1] == [{"role": "user", "content": "what is two"}]
    with RunningJobs(path, tmp_path / "runs", "--no-dashboard") as run:
        assert run.end(250) == 0, run.output[-4000:]
        metrics, folder = run.steps("lengths")[1], run.folder("lengths")
    assert metrics["reward/talk/questions"] == 1.0
    assert metrics["rollout/logprob_gap_max"] < 1e-3
    tokenizer = load_prepared(folder).tokenizer
    rendered = [
        tokenizer.apply_chat_template(row, tokenize=False, add_generation_prompt=True) for row in prompts
    ]
    (batch,) = recorded_batches(folder, 1)
    assert len(batch) == PROMPTS * SAMPLES
    for index, reward in enumerate(read_scores(batch, "talk")):
        sequence = batch.select([index])
        first = sequence.token("loss_mask").tolist().index(1)
        assert tokenizer.decode(sequence.tokens[:first]) in rendered
        response = tokenizer.decode(sequence.tokens[first:], skip_special_tokens=True)
        assert reward == len(response.strip()), response
