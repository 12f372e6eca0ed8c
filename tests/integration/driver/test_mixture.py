"""Mixture of sources: each draw is trained on once, through a stop and a resumption."""

import asyncio
import json
from typing import Any

import pytest

from kubealign.spec.job import AlignmentJob
from kubealign_services.data.epoch_shuffle import EpochCursor, take_rows
from kubealign_services.data.mixture import build_row_order
from kubealign_services.roles.driver.errors import ShutdownRequested
from support.tiny_jobs import online_job

pytestmark = pytest.mark.timeout(120)

STEPS, PROMPTS_PER_STEP = 20, 2


async def test_each_draw_is_trained_on_once_through_a_stop(stage: Any) -> None:
    # 28 and 4 of the 32 rows, in the shares 3 to 1: the small source is drawn twice in the first epoch.
    mixture = [
        {"name": name, "source": {"path": f"{name}.jsonl"}, "weight": weight}
        for name, weight in (("sums", 3.0), ("words", 1.0))
    ]
    algorithm = {"rloo": {"promptsPerStep": PROMPTS_PER_STEP, "samplesPerPrompt": 2}}
    spec = {"maxSteps": STEPS, "checkpoint": {"everySteps": 3}, "data": {"prompts": {"mixture": mixture}}}
    algorithm["rloo"]["kl"] = {"fixed": {"coefficient": 0.0}}
    stage.job = AlignmentJob.model_validate(online_job(stage.run_dir.parent, "mixed", algorithm, **spec))
    stage.rows = stage.rows.model_copy(update={"sources": {"sums": 28, "words": 4}})
    stage.worker.generating.at = 7
    driving = stage.begin()
    await stage.worker.generating.held.wait()
    stage.stop.set()
    with pytest.raises(ShutdownRequested):
        await driving
    assert stage.committed == 7
    stage.worker.generating.at = None
    stage.worker.generating.let_go.set()
    stage.stop.clear()
    stage.fence = 2
    await asyncio.wait_for(stage.drive(), 60)
    trained = [name for line in stage.history() for name in json.loads(line)["prompts"]]
    order = build_row_order(stage.job.spec.data.value, stage.rows, stage.job.spec.seed)
    draws, _ = take_rows(EpochCursor(), STEPS * PROMPTS_PER_STEP, order)
    assert trained == [f"{draw.source_pass}/{draw.row}" for draw in draws]
    assert len(set(trained)) == len(trained)
    shares = {
        name: [step[f"data/source/{name}/rows"] for step in stage.metrics] for name in ("sums", "words")
    }
    assert (sum(shares["sums"][:16]), sum(shares["words"][:16])) == (24, 8)
    # The scripted worker gives sample 0 the reward 0 and sample 1 the reward 1.
    for step in stage.metrics:
        for name in ("sums", "words"):
            drawn = step[f"data/source/{name}/rows"] > 0
            assert step.get(f"reward/source/{name}/mean") == (0.5 if drawn else None)
