"""Forks of a run: the same later steps where nothing is changed, and killed while they start."""

import asyncio
import filecmp
import json
from pathlib import Path
from typing import Any

import pytest

from kubealign.client.async_client import AsyncAlignmentClient
from kubealign.client.errors import JobInvalid
from kubealign.client.submission import to_document
from kubealign.spec.changes.fork import fork_job
from kubealign_services.checkpoints.history import read_history
from support.running import RunningJobs
from support.tiny_jobs import sft_job, write_jobs

pytestmark = pytest.mark.timeout(300)

_RATE = "spec.trainer.optimizer.adamW.learningRate"


def _training_metrics(run: Path) -> dict[int, dict[str, Any]]:
    """Return the metrics of each step that follow from its weights and its batch."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return {
        line["step"]: {
            name: value for name, value in line.items() if name.startswith(("sft/", "trainer/grad", "loss"))
        }
        for line in lines
    }


def _files(folder: Path) -> dict[Path, tuple[int, bytes]]:
    return {
        path.relative_to(folder): (path.stat().st_mtime_ns, path.read_bytes())
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_a_fork_goes_on_as_its_parent_and_with_another_rate_from_its_first_step_on(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    learns = {"optimizer": {"adamW": {"learningRate": 1.0e-2}}}
    checkpoint = {"everySteps": 1, "keep": 9}
    parent = sft_job(tmp_path, "parent", trainer=learns, checkpoint=checkpoint)
    with RunningJobs(write_jobs(tmp_path, parent), runs) as run:
        assert run.end(timeout=120.0) == 0, run.output
    before = _files(runs / "parent")

    async def refuse_missing_step() -> None:
        async with AsyncAlignmentClient.local(runs) as client:
            forked = await client.fork("parent", 2, "fork", [f"{_RATE}=0.02"], dry_run=True)
            assert forked.name == "fork"
            with pytest.raises(JobInvalid, match=r"no checkpoint of step 7; it has those of 1, 2, 3, 4"):
                await client.fork("parent", 7, "fork", ["spec.maxSteps=9"])

    asyncio.run(refuse_missing_step())
    same = to_document(fork_job(parent, "same", 2).job)
    other = to_document(fork_job(parent, "other", 2, [f"{_RATE}=0.02"]).job)
    # Killed between the links and their rename, and between the history of the parent and its record.
    (runs / "same").mkdir()
    kills = [{"name": name, "action": "Kill"} for name in ("parent-before-rename", "parent-before-record")]
    (runs / "same" / "failpoints.json").write_text(json.dumps(kills))
    with RunningJobs(write_jobs(tmp_path, same, other), runs) as run:
        assert run.end(timeout=240.0) == 0, run.output
    assert sorted(path.name for path in (runs / "same" / "failpoints.fired").iterdir()) == ["0", "1"]
    assert _files(runs / "parent") == before

    expected, metrics = _training_metrics(runs / "parent"), _training_metrics(runs / "same")
    assert all("sft/loss" in expected[step] for step in (3, 4))
    assert metrics == {step: expected[step] for step in (3, 4)}
    model = Path("result") / "model.safetensors"
    assert filecmp.cmp(runs / "same" / model, runs / "parent" / model, shallow=False)

    # The loss of step 3 is that of the parent's weights; its update is the first that differs.
    changed = _training_metrics(runs / "other")
    assert sorted(changed) == [3, 4]
    assert changed[3]["sft/loss"] == expected[3]["sft/loss"]
    assert changed[4]["sft/loss"] != expected[4]["sft/loss"]

    trained = {
        name: [step.prompts for step in read_history(runs / name)] for name in ("parent", "same", "other")
    }
    assert trained["same"] == trained["other"] == trained["parent"]
    prompts = [prompt for step in trained["same"] for prompt in step]
    assert len(prompts) == len(set(prompts)) == 4 * 8
    for name in ("same", "other"):
        # The links to the parent's checkpoint are deleted after the first own one.
        assert not (runs / name / "parent").exists()
        record = json.loads((runs / name / "parent.json").read_text())
        assert (record["job"], record["step"]) == ("parent", 2)
        assert any(_RATE in change for change in record["changes"]) == (name == "other")
