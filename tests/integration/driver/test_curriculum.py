"""Curriculum through a stop and a resumption: the same prompts as in a job that is not stopped."""

import asyncio
import json
from math import ceil, floor
from typing import Any

import pytest

from kubealign.spec.job import AlignmentJob
from kubealign.v1 import rollout_pb2
from kubealign_services.roles.driver.errors import ShutdownRequested
from support.tiny_jobs import online_job

pytestmark = pytest.mark.timeout(120)

ROWS, STEPS = 32, 36
CURRICULUM = {"easy": {"atLeast": 1.0, "share": 0.25}, "hard": {"atMost": 0.0, "share": 0.5}}


def row_of(prompt: str) -> int:
    return int(prompt.partition("/")[2])


def reward(item: rollout_pb2.WorkItem, sample: int) -> float:
    """Return 1 for the samples of every fourth row, 0 for those of the row after it, else 0 and 1."""
    return {0: 1.0, 1: 0.0}.get(row_of(item.group_id) % 4, float(sample))


@pytest.mark.parametrize(
    ("staleness", "fields"),
    [(0, {}), (1, {}), (0, {"dynamicSampling": {}})],
    ids=["sync", "async", "dynamic"],
)
async def test_a_stopped_job_draws_the_prompts_of_one_that_is_not(
    stage: Any, staleness: int, fields: dict[str, Any]
) -> None:
    mixture = [{"name": name, "source": {"path": f"{name}.jsonl"}} for name in ("sums", "words")]
    algorithm = {"grpo": {"promptsPerStep": 2, "samplesPerPrompt": 2, "maxStaleness": staleness} | fields}
    data = {"prompts": {"mixture": mixture, "curriculum": CURRICULUM}}
    document = online_job(
        stage.run_dir.parent, "stopped", algorithm, maxSteps=STEPS, checkpoint={"everySteps": 5}, data=data
    )
    stage.job = AlignmentJob.model_validate(document)
    stage.rows = stage.rows.model_copy(update={"sources": {"sums": 16, "words": 16}})
    stage.worker.reward = reward
    # After the first epoch has ended.
    stage.worker.generating.at = 21
    driving = stage.begin()
    await stage.worker.generating.held.wait()
    stage.stop.set()
    with pytest.raises(ShutdownRequested):
        await driving
    assert stage.committed is not None and 20 <= stage.committed < STEPS
    stage.worker.generating.at = None
    stage.worker.generating.let_go.set()
    stage.stop.clear()
    stage.fence = 2
    await asyncio.wait_for(stage.drive(), 60)
    lines = [json.loads(line) for line in stage.history()]
    metrics = {line["step"]: line for line in stage.metrics}

    # The same job in another run directory, without a stop.
    stage.run_dir = stage.run_dir.parent / "whole"
    stage.run_dir.mkdir()
    stage.trainer.state.loaded = False
    stage.fence, stage.metrics = 3, []
    await asyncio.wait_for(stage.drive(), 60)
    assert [line | {"fence": 0} for line in lines] == [
        json.loads(line) | {"fence": 0} for line in stage.history()
    ]
    names = ("curriculum/easy", "curriculum/hard", "curriculum/skipped", "data/source/sums/rows")
    for line in stage.metrics:
        assert [line[name] for name in names] == [metrics[line["step"]][name] for name in names]

    steps = [[*line["prompts"], *line.get("dropped", [])] for line in lines]
    drawn = [prompt for prompts in steps for prompt in prompts]
    assert len(set(drawn)) == len(drawn)
    epochs = [[row_of(name) for name in drawn if name.startswith(f"{epoch}/")] for epoch in (0, 1)]
    assert sorted(epochs[0]) == list(range(ROWS))
    # The pools of the second epoch are those of the steps before the one that requested its first prompt.
    begins = (
        next(index for index, step in enumerate(steps) if any(name[0] == "1" for name in step)) - staleness
    )
    known = {row_of(name) for step in steps[:begins] for name in step}
    easy, hard = ([row for row in known if row % 4 == rest] for rest in (0, 1))
    assert metrics[begins + 1]["curriculum/easy"] == len(easy) > 4
    assert metrics[begins + 1]["curriculum/hard"] == len(hard) > 4
    for pool, share in ((easy, 0.25), (hard, 0.5)):
        for source in (range(16), range(16, 32)):
            quota = share * len(set(pool) & set(source))
            assert len(set(pool) & set(source) & set(epochs[1])) in (floor(quota), ceil(quota))
    assert set(range(ROWS)) - set(easy) - set(hard) <= set(epochs[1])
    assert metrics[STEPS]["curriculum/skipped"] > metrics[1]["curriculum/skipped"] == 0
    # The mean rewards of all prompts are in the history.
    for line, prompts in zip(lines, steps, strict=True):
        expected = [{0: 1.0, 1: 0.0}.get(row_of(prompt) % 4, 0.5) for prompt in prompts]
        assert line["mean_rewards"] == expected
