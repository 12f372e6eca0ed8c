"""Checkpoints of a run on this machine: their sizes, and pins that keep them."""

import json
from dataclasses import dataclass
from datetime import datetime

from kubealign.checkpoint_pins import PINS_FOLDER, pinned_steps, pins_lock
from kubealign.local.errors import RunRefused
from kubealign.local.run_dir.layout import RunDirectory


@dataclass(frozen=True)
class CheckpointSummary:
    """A checkpoint of a run. size_bytes: bytes of its shards. created: time of its commit."""

    step: int
    size_bytes: int
    created: datetime
    is_pinned: bool


def list_checkpoints(run: RunDirectory) -> list[CheckpointSummary]:
    """Return the checkpoints of a run by step; one that is removed meanwhile, or damaged, is left out."""
    pinned = pinned_steps(run.root)
    summaries = []
    for path in sorted(run.checkpoints.glob("step-*")):
        try:
            manifest = json.loads((path / "manifest.json").read_bytes())
            shards = [shard for role in manifest["shards"].values() for shard in role]
            summary = CheckpointSummary(
                step=int(manifest["step"]),
                size_bytes=sum(int(shard["size_bytes"]) for shard in shards),
                created=datetime.fromisoformat(manifest["created"]),
                is_pinned=int(manifest["step"]) in pinned,
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue
        summaries.append(summary)
    return summaries


def pin_checkpoint(run: RunDirectory, step: int) -> None:
    """Pin the checkpoint of a step: the run's retention does not remove it. Pinning again has no effect.

    Raises RunRefused where the run has no such checkpoint, OSError where the pin cannot be written.
    """
    _check_run(run)
    folder = run.root / PINS_FOLDER
    folder.mkdir(exist_ok=True)
    with pins_lock(run.root):
        if step not in run.checkpoint_steps():
            available = run.describe_checkpoints()
            raise RunRefused(f"--at {step}: {run.root} has no checkpoint of step {step}; it has {available}")
        (folder / str(step)).write_text("\n")


def unpin_checkpoint(run: RunDirectory, step: int) -> None:
    """Remove the pin of a step. The run's next checkpoint removes the step's, unless its policy keeps it.

    Raises RunRefused where the step is not pinned, OSError where the pin cannot be removed.
    """
    _check_run(run)
    with pins_lock(run.root):
        pinned = sorted(pinned_steps(run.root))
        if step not in pinned:
            steps = f"pinned are {', '.join(map(str, pinned))}" if pinned else "none is pinned"
            raise RunRefused(f"--at {step}: step {step} of {run.root} is not pinned; {steps}")
        (run.root / PINS_FOLDER / str(step)).unlink()


def _check_run(run: RunDirectory) -> None:
    if not run.job.exists():
        raise RunRefused(f"{run.root} holds no run (it has no job.json)")
