"""The run from whose checkpoint a job starts (spec.checkpoint.from). It is only read."""

import logging
from dataclasses import replace
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kubealign.spec.changes.continuation import continuation_differences
from kubealign.spec.changes.differences import field_differences
from kubealign.spec.job import AlignmentJob
from kubealign_services.checkpoints.durable_files import fsync_path, replace_file
from kubealign_services.checkpoints.fence import Fence
from kubealign_services.checkpoints.history import CorruptHistory, history_path, read_history
from kubealign_services.checkpoints.lineage import UNRECORDED_FENCE, CorruptLineage
from kubealign_services.checkpoints.parent_checkpoint import (
    CheckpointRemoved,
    link_checkpoint,
    open_linked_checkpoint,
)
from kubealign_services.checkpoints.store import CheckpointCorrupted, CheckpointReader, StoredCheckpoint
from kubealign_services.roles.driver.errors import UnrecoverableError
from kubealign_services.runtime.failpoints import Failpoint, failpoint
from kubealign_services.runtime.process.failures import PermanentFailure

#: Record of the parent in the run directory. It exists from the first attempt on, before the first step.
PARENT_FILE = "parent.json"
_FIELD = "spec.checkpoint.from"
_DOCUMENT = "job.json"

log = logging.getLogger(__name__)


class ParentRecord(BaseModel):
    """First entry of the job's lineage. job: name of the parent. run: its run directory, which in a cluster
    ends with its uid. step: step of its checkpoint. changes: fields whose value differs from the parent's.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    job: str
    run: str
    step: int = Field(ge=1)
    changes: list[str] = []


def check_parent(job: AlignmentJob, parent_run: Path, run_dir: Path) -> None:
    """Check that the job can continue the parent's checkpoint, before anything is prepared, and link it.

    The checkpoint's files are verified by the driver. A job that has taken the checkpoint over before is not
    checked again: the parent may be deleted then. A parent that goes on may remove a checkpoint without
    harm once it is linked.

    Raises:
        PermanentFailure: The parent is no run, has no such checkpoint, or is a run of a job that differs
            where it must not.
    """
    if (run_dir / PARENT_FILE).exists():
        return
    parent = _read_parent(parent_run)
    differences = continuation_differences(parent, job)
    if differences:
        raise PermanentFailure(
            f"{_FIELD}: the checkpoints of {parent_run} cannot be continued by this job: "
            f"{'; '.join(differences[:3])}. Make these fields equal, or remove {_FIELD}"
        )
    source = job.spec.checkpoint.source
    step = None if source is None else source.step
    if open_linked_checkpoint(run_dir) is not None:
        return
    try:
        paths = CheckpointReader(parent_run).paths()
        matching = [path for path in paths if step is None or _step_of(path) == step]
        if not matching:
            steps = sorted({_step_of(path) for path in paths})
            raise PermanentFailure(_missing_checkpoint(parent_run, step, steps))
        # Without a step, a damaged checkpoint is skipped for an older one: the parent must not run.
        if step is not None:
            link_checkpoint(matching[-1], run_dir)
    except (CorruptLineage, CheckpointRemoved) as error:
        raise PermanentFailure(f"{_FIELD}: {error}") from error


def load_parent_checkpoint(
    job: AlignmentJob, parent_run: Path, fence: Fence, total_steps: int
) -> StoredCheckpoint:
    """Return the parent's verified checkpoint, after the parent and its history are recorded in the run.

    The step is chosen once: later attempts before the job's first own checkpoint start from the same one.

    Raises:
        UnrecoverableError: The checkpoint is missing or damaged, or leaves no step to train.
        StaleFence: Another driver has taken over.
    """
    source = job.spec.checkpoint.source
    record = _read_record(fence.run_dir)
    step = record.step if record is not None else None if source is None else source.step
    try:
        reader = open_linked_checkpoint(fence.run_dir) or CheckpointReader(parent_run)
        checkpoint = reader.latest() if step is None else reader.at_step(step)
        if checkpoint is None:
            raise UnrecoverableError(_missing_checkpoint(parent_run, step, _checkpoint_steps(parent_run)))
        # With the step named in the spec, a job that ends with it trains nothing and exports the model.
        is_export = source is not None and source.step == total_steps
        if checkpoint.manifest.step >= total_steps and not is_export:
            raise UnrecoverableError(
                f"{_FIELD}: the checkpoint is of step {checkpoint.manifest.step}, and this job ends after "
                f"step {total_steps}: raise spec.maxSteps or maxEpochs, which count the parent's steps too"
            )
        if record is None:
            _record_parent(job, checkpoint, parent_run, fence)
    except CheckpointCorrupted as error:
        problem = str(error).partition("; restore one of them")[0]
        raise UnrecoverableError(
            f"{_FIELD}: {parent_run}: {problem}; name another step or another run"
        ) from error
    except (CorruptHistory, CorruptLineage, OSError) as error:
        raise UnrecoverableError(f"{_FIELD}: {parent_run} cannot be read: {error}") from error
    except PermanentFailure as error:
        raise UnrecoverableError(str(error)) from error
    log.info(
        "starting from the checkpoint of another run",
        extra={"run": str(parent_run), "step": checkpoint.manifest.step},
    )
    # The parent may have ended before its last step; this job decides for itself when to end.
    driver_state = {**checkpoint.manifest.driver_state, "finished": ""}
    return replace(checkpoint, manifest=checkpoint.manifest.model_copy(update={"driver_state": driver_state}))


def read_first_step(run_dir: Path) -> int:
    """Return the step of the weights with which the job begins: 0, or the step of its parent's checkpoint."""
    record = _read_record(run_dir)
    return 0 if record is None else record.step


def _record_parent(job: AlignmentJob, checkpoint: StoredCheckpoint, parent_run: Path, fence: Fence) -> None:
    """Write the parent's steps into the job's history, under the fence before all others, then the record.

    Raises PermanentFailure where the parent was deleted.
    """
    run_dir, step = fence.run_dir, checkpoint.manifest.step
    before, now = (
        each.spec.model_dump(mode="json", by_alias=True) for each in (_read_parent(parent_run), job)
    )
    changes = [str(change) for change in field_differences(before, now, ("spec",))]
    lines = [line.to_line() for line in read_history(parent_run) if line.step <= step]
    record = ParentRecord(job=checkpoint.manifest.job, run=str(parent_run), step=step, changes=changes)
    failpoint(Failpoint.PARENT_BEFORE_RECORD)
    fence.check()
    replace_file(history_path(run_dir, UNRECORDED_FENCE), lines)
    replace_file(run_dir / PARENT_FILE, [record.model_dump_json(indent=1).encode() + b"\n"])
    fsync_path(run_dir)


def _read_parent(parent_run: Path) -> AlignmentJob:
    """Return the parent's job. Raises PermanentFailure."""
    try:
        return AlignmentJob.model_validate_json((parent_run / _DOCUMENT).read_bytes())
    except OSError as error:
        raise PermanentFailure(f"{_FIELD}: {parent_run} holds no run: {error.strerror}") from error
    except ValidationError as error:
        raise PermanentFailure(
            f"{_FIELD}: {parent_run / _DOCUMENT} was written by another version of kubealign, or is damaged"
        ) from error


def _read_record(run_dir: Path) -> ParentRecord | None:
    path = run_dir / PARENT_FILE
    try:
        return ParentRecord.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        raise UnrecoverableError(f"{path} cannot be read: {error}") from error


def _checkpoint_steps(run: Path) -> list[int]:
    """Return the steps of the run's checkpoints, unverified. Raises CorruptLineage."""
    return sorted({_step_of(path) for path in CheckpointReader(run).paths()})


def _step_of(path: Path) -> int:
    return int(path.name.split("-")[1])


def _missing_checkpoint(run: Path, step: int | None, steps: list[int]) -> str:
    if step is None or not steps:
        return f"{_FIELD}: {run} has no checkpoint: name another run"
    available = ", ".join(map(str, steps))
    return f"{_FIELD}.step: {run} has no checkpoint of step {step}; it has those of {available}"
