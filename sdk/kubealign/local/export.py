"""Export of the model of any checkpoint of a run on this machine.

The trainer's own processes load the checkpoint and write the model, as at the end of the run, so that every
backend, parallel layout and adapter is read by the code that wrote it. The run itself is only read.
"""

import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path

from kubealign.local.display.terminal import LinesDisplay
from kubealign.local.replay import PlannedReplay, create_replay_folder, training_only
from kubealign.local.run_dir.layout import RunDirectory
from kubealign.local.run_dir.spec_diff import read_job
from kubealign.local.runner.admission import run_directory
from kubealign.local.runner.run_jobs import run_jobs
from kubealign.replay.plan import ReplayError, ReplayPlan


def plan_export(run: RunDirectory, step: int, target: Path, runs_dir: Path) -> PlannedReplay:
    """Plan the export of the model of a step of a run, as a replay of no step.

    Args:
        step: Step of a checkpoint; 0: the weights with which the run began.
        target: Folder to write, which must not exist.
        runs_dir: Folder for the run directory of the export.

    Raises:
        ReplayError: There is no such run or checkpoint, the job trains nothing, or the target exists.
        RunRefused: The run's job cannot be read.
    """
    job = read_job(run.job)
    if job is None:
        raise ReplayError(f"{run.root} holds no run (it has no job.json)")
    if not job.spec.algorithm.value.trains:
        raise ReplayError(f"{run.root} has no models: {job.spec.algorithm.member} trains nothing")
    steps = exportable_steps(run)
    if step not in steps:
        raise ReplayError(
            f"--step {step}: {run.root} has no checkpoint of step {step}; it has those of "
            f"{', '.join(map(str, steps))} (0: the weights with which the run began)"
        )
    if target.exists():
        raise ReplayError(f"{target} exists: name another folder, or delete it")
    # Nothing is trained: the driver loads the checkpoint before the first step to replay, and ends.
    replay = ReplayPlan(run=run.root, first_step=step + 1, last_step=step)
    name = f"export-{step}"
    return PlannedReplay(training_only(job, name), run_directory(runs_dir, name), replay, is_changed=False)


def exportable_steps(run: RunDirectory) -> Sequence[int]:
    """Return the steps whose models can be exported, ascending: 0, and those of the checkpoints."""
    return [0, *run.checkpoint_steps()]


def export_model(run: RunDirectory, step: int, target: Path, display: LinesDisplay) -> int:
    """Export the model of a step of a run, and return the exit code of `run_jobs`.

    Args:
        target: Folder to write, which must not exist.

    Raises ReplayError, RunRefused, OSError.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    # On the file system of the target, to which the model is moved.
    with tempfile.TemporaryDirectory(prefix=".export-", dir=target.parent) as folder:
        runs_dir = Path(folder)
        planned = plan_export(run, step, target, runs_dir)
        create_replay_folder(planned, fresh=True)
        code = asyncio.run(run_jobs([planned.job], runs_dir, False, display))
        if code == 0:
            planned.folder.result.rename(target)
        planned.folder.release_shared_memory()
    return code
