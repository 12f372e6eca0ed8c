"""Rewards of all samples of a prompt at once through the real command: two replicas of which one is killed in
a call, a driver that is killed later, a pool that is scaled, and scores in a validation."""

import json
import os
import signal
from collections import defaultdict
from pathlib import Path
from statistics import fmean
from typing import Any

import psutil
import pytest

from kubealign_services.batch.packed import Batch
from kubealign_services.batch.reward_columns import read_scores
from kubealign_services.data.prepared import load_prepared
from support.recorded_batches import recorded_batches
from support.running import RunningJobs, alive
from support.tiny_jobs import online_job, write_jobs, write_reward

pytestmark = pytest.mark.timeout(240)

STEPS = 3
#: More than a replica pulls at a time, so that each has a call.
PROMPTS = 8
SAMPLES = 3
#: Functions that record each call with its process, and return once the file `go` exists.
FUNCTIONS = """
import asyncio
import json
import os
import pathlib

FOLDER = pathlib.Path({folder!r})

def worker():
    # The id of the reward's process: the parent of the supervisor that is this process's parent.
    status = pathlib.Path(f"/proc/{{os.getppid()}}/stat").read_text()
    return status.rpartition(")")[2].split()[1]

async def rank(prompts, responses, place, sample_index, sample_kind):
    with (FOLDER / f"{{worker()}}.calls").open("a") as file:
        call = dict(prompts=prompts, place=place, index=sample_index, kind=sample_kind)
        file.write(json.dumps(call) + "\\n")
    while not (FOLDER / "go").exists():
        await asyncio.sleep(0.02)
    letters = [len(set(response)) for response in responses]
    return [
        {{
            "reward": None if response in responses[:i] else sum(each < letters[i] for each in letters),
            "metrics": {{"distinct": len(set(responses))}},
            "explanation": f"{{kind}} of {{len(responses)}}",
        }}
        for i, (response, kind) in enumerate(zip(responses, sample_kind))
    ]

def spread(prompts, responses):
    return [len(set(responses)) / len(responses)] * len(responses)
"""


def expected_rewards(responses: list[str]) -> list[float | None]:
    """Return what the function returns for the samples of a prompt, by a loop."""
    rewards: list[float | None] = []
    for index, response in enumerate(responses):
        fewer = [other for other in responses if len(set(other)) < len(set(response))]
        rewards.append(None if response in responses[:index] else float(len(fewer)))
    return rewards


def write_job(folder: Path, calls: Path) -> Path:
    calls.mkdir()
    rows = [{"prompt": letter + "h", "place": number} for number, letter in enumerate("abcdefgh")]
    prompts = folder / "placed.jsonl"
    prompts.write_text("".join(json.dumps(row) + "\n" for row in rows))
    code = FUNCTIONS.format(folder=str(calls))
    rank, spread = write_reward(folder, code, "rank"), write_reward(folder, code, "spread")
    for entry in (rank, spread):
        entry["function"]["file"]["name"] = entry["name"]
        entry["scope"] = "Group"
    data = {"prompts": {"source": {"path": str(prompts)}, "shuffle": False}}
    job = online_job(
        folder,
        "ranked",
        {"remax": {"promptsPerStep": PROMPTS, "samplesPerPrompt": SAMPLES}},
        maxSteps=STEPS,
        data=data,
        rewards=[rank | {"replicas": 2}, write_reward(folder)],
        validation={
            "data": {"prompts": {"source": {"path": str(prompts)}, "limit": 2}},
            "atStart": False,
            "everySteps": STEPS,
            "sampling": {"samplesPerPrompt": 5, "scores": [spread]},
        },
        checkpoint={"everySteps": 1, "recordBatches": True},
    )
    return write_jobs(folder, job)


def read_calls(folder: Path) -> dict[int, list[dict[str, Any]]]:
    """Return the calls of each reward process, by its id."""
    return {
        int(path.stem): [json.loads(line) for line in path.read_text().splitlines()]
        for path in folder.glob("*.calls")
    }


def check_batch(batch: Batch, tokenizer: Any) -> None:
    """Compare the rewards of each prompt of a batch with the loop. The greedy sample is the last one."""
    members, column = defaultdict(list), read_scores(batch, "rank")
    for index, group in enumerate(batch.sequence("group").tolist()):
        sequence = batch.select([index])
        tokens = sequence.tokens[sequence.token("loss_mask").bool()]
        members[group].append(
            (tokenizer.decode(tokens).removesuffix(str(tokenizer.eos_token)), column[index])
        )
    assert [len(samples) for samples in members.values()] == [SAMPLES + 1] * PROMPTS
    for samples in members.values():
        assert [reward for _, reward in samples] == expected_rewards([response for response, _ in samples])
    companions = batch.sequence("companion").tolist()
    assert companions == ([0] * SAMPLES + [1]) * PROMPTS


def test_each_call_has_the_samples_of_a_prompt(tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    with RunningJobs(write_job(tmp_path, calls), tmp_path / "runs", "--no-dashboard") as run:
        run.wait_until("a call of each replica", lambda: len(read_calls(calls)) == 2, 120)
        killed = run.processes("ranked")["reward-rank-1"]["pid"]
        assert killed in read_calls(calls)
        victims = [killed, *(child.pid for child in psutil.Process(killed).children(recursive=True))]
        os.kill(killed, signal.SIGKILL)
        run.wait_until("the end of the killed function", lambda: not alive(victims), 30)
        (calls / "go").touch()
        run.wait_for_step("ranked", 1)
        run.kill("ranked", "driver")
        # The runner's socket changes the number of processes of a reward too; no command does.
        run.scale("ranked", 3, "reward-rank")
        assert "reward-rank-2" in run.processes("ranked")
        run.scale("ranked", 1, "reward-rank")
        assert {name for name in run.processes("ranked") if "rank" in name} == {"reward-rank-0"}
        assert run.end(120) == 0, run.output[-4000:]
        steps, metrics, folder = run.steps("ranked"), run.metrics("ranked"), run.folder("ranked")
    kinds = ["policy"] * SAMPLES + ["greedy"]
    recorded = [call for process in read_calls(calls).values() for call in process]
    training = [call for call in recorded if len(call["index"]) == SAMPLES + 1]
    assert all(call["index"] == [*range(SAMPLES + 1)] and call["kind"] == kinds for call in training)
    validation = [call for call in recorded if call not in training]
    assert all(call["index"] == [*range(5)] and call["kind"] == ["policy"] * 5 for call in validation)
    assert sorted(call["place"][0] for call in validation) == [0, 1]
    for call in recorded:
        assert len({*call["prompts"]}) == len({*call["place"]}) == 1
    tokenizer = load_prepared(folder).tokenizer
    for step, batch in enumerate(recorded_batches(folder, STEPS), start=1):
        check_batch(batch, tokenizer)
        assert 1 <= steps[step]["reward/rank/distinct"] <= SAMPLES + 1
    shown = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
    explanations = {sample["explanations"]["rank"] for sample in shown if sample.get("explanations")}
    assert f"policy of {SAMPLES + 1}" in explanations
    validated = next(line for line in metrics if "val/spread" in line)
    answers = defaultdict(list)
    for line in (folder / "validation" / f"step-{STEPS:06d}.jsonl").read_text().splitlines():
        answer = json.loads(line)
        answers[answer["group_id"]].append((answer["response"], answer["scores"]))
    assert [len(group) for group in answers.values()] == [5, 5]
    for group in answers.values():
        responses = [response for response, _ in group]
        assert {scores["spread"] for _, scores in group} == {len(set(responses)) / 5}
        assert [scores["rank"] for _, scores in group] == expected_rewards(responses)
    spreads = [scores["spread"] for group in answers.values() for _, scores in group]
    assert validated["val/spread"] == pytest.approx(fmean(spreads))
