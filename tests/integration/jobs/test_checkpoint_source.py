"""Jobs that start from the checkpoint of another run."""

import filecmp
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from kubealign_services.checkpoints.history import read_history
from support.running import RunningJobs
from support.tiny_jobs import sft_job, write_jobs

pytestmark = pytest.mark.timeout(300)


def _weights(run: Path, step: int) -> dict[str, torch.Tensor]:
    (folder,) = (run / "commits").glob(f"step-{step:08d}*")
    (shard,) = (folder / "trainer").glob("*.safetensors")
    return {name: tensor for name, tensor in load_file(shard).items() if name.startswith("weight.")}


def _snapshot(folder: Path) -> dict[Path, tuple[int, bytes]]:
    return {
        path.relative_to(folder): (path.stat().st_mtime_ns, path.read_bytes())
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_the_best_checkpoint_is_kept_and_exported(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    # The learning rate destroys the model: the loss on the held-out rows is lowest at the first validation.
    destroys = {"optimizer": {"adamW": {"learningRate": 1.0}}}
    job = sft_job(tmp_path, "parent", maxSteps=6, trainer=destroys)
    job["spec"]["validation"] = {"data": job["spec"]["data"], "everySteps": 1}
    best = {"metric": "val/loss", "order": "Lowest"}
    job["spec"]["checkpoint"] = {"everySteps": 3, "keep": 1, "keepBest": best}
    with RunningJobs(write_jobs(tmp_path, job), runs) as run:
        assert run.end(timeout=120.0) == 0, run.output
        lines = [line for line in run.metrics("parent") if "val/loss" in line and line["step"] > 0]
    losses = {line["step"]: line["val/loss"] for line in lines}
    assert sorted(losses) == [1, 2, 3, 4, 5, 6]
    lowest = min(losses, key=lambda step: losses[step])
    assert lowest != 6, losses
    steps = [int(path.name.split("-")[1]) for path in (runs / "parent" / "commits").glob("step-*")]
    assert sorted(steps) == [lowest, 6]

    source = {"from": {"job": {"name": "parent"}, "step": lowest}}
    export = sft_job(tmp_path, "export", maxSteps=lowest, trainer=destroys, checkpoint=source)
    with RunningJobs(write_jobs(tmp_path, export), runs) as run:
        assert run.end(timeout=120.0) == 0, run.output
        assert not run.metrics("export")
    exported = load_file(runs / "export" / "result" / "model.safetensors")
    weights = _weights(runs / "parent", lowest)
    assert {f"weight.backbone.{name}" for name in exported} == weights.keys()
    assert all(torch.equal(tensor, weights[f"weight.backbone.{name}"]) for name, tensor in exported.items())


def test_a_job_goes_on_from_the_checkpoint_of_another_run(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    checkpoint: dict[str, Any] = {"everySteps": 1, "keep": 9}
    still = {"optimizer": {"adamW": {"learningRate": 1.0e-30}}}
    learns = {"optimizer": {"adamW": {"learningRate": 1.0e-2}}}
    parent = sft_job(tmp_path, "parent", trainer=learns, checkpoint=checkpoint)
    with RunningJobs(write_jobs(tmp_path, parent), runs) as run:
        assert run.end(timeout=120.0) == 0, run.output
    before = _snapshot(runs / "parent")

    from_step = {"from": {"job": {"name": "parent"}, "step": 2}}
    same = sft_job(tmp_path, "same", trainer=learns, checkpoint=checkpoint | from_step)
    from_newest = {"from": {"path": str(runs / "parent")}}
    newest = sft_job(tmp_path, "newest", maxSteps=5, trainer=still, checkpoint=checkpoint | from_newest)
    with RunningJobs(write_jobs(tmp_path, newest, same), runs) as run:
        assert run.end(timeout=240.0) == 0, run.output
        assert [line["step"] for line in run.metrics("same")] == [3, 4]
        assert [line["step"] for line in run.metrics("newest")] == [5]

    # A learning rate that changes no bit: step 5 has the weights with which the job started.
    start, original = _weights(runs / "newest", 5), _weights(runs / "parent", 4)
    assert start.keys() == original.keys()
    assert all(torch.equal(start[name], original[name]) for name in original)
    assert not torch.equal(next(iter(original.values())), next(iter(_weights(runs / "parent", 2).values())))
    # The same steps from there on: optimiser state and data position are the parent's.
    assert filecmp.cmp(
        runs / "same" / "result" / "model.safetensors",
        runs / "parent" / "result" / "model.safetensors",
        False,
    )

    trained = {
        name: [step.prompts for step in read_history(runs / name)] for name in ("parent", "same", "newest")
    }
    assert trained["same"] == trained["parent"]
    assert trained["newest"][:4] == trained["parent"]
    prompts = [prompt for step in trained["newest"] for prompt in step]
    assert len(prompts) == len(set(prompts)) == 5 * 8
    assert _snapshot(runs / "parent") == before
