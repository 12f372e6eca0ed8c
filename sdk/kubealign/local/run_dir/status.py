"""Status of a run: status.json."""

import math
import os
import time
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from kubealign.local.errors import RunRefused
from kubealign.read_model import JobProgress, StepMetrics


class Phase(StrEnum):
    """Phase of a run.

    RUNNING in the file of a dead runner: it was killed. STOPPED: by a signal, with work left.
    """

    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    STOPPED = "Stopped"


class RunStatus(BaseModel):
    """Status of one job's run. Times are seconds since the epoch."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    phase: Phase
    #: Cause of a failure or stop, in plain words.
    message: str = ""
    #: The last observed step.
    step: int = 0
    #: Process id of the runner.
    runner: int
    #: Start of the job's first runner.
    first_started_at: float | None = None
    #: Start and end of this runner.
    started_at: float
    ended_at: float | None = None
    #: Run time of the job in seconds, over all runners that ended in an orderly way.
    active_seconds: float = 0.0
    #: Metrics of the last step.
    metrics: dict[str, float] = {}

    def write(self, path: Path) -> None:
        draft = path.with_name(f".{path.name}")
        draft.write_text(self.model_dump_json(indent=2) + "\n")
        draft.replace(path)


@dataclass(frozen=True)
class FinalProgress:
    """Last progress and metrics that the job reported; None: nothing."""

    progress: JobProgress | None = None
    metrics: StepMetrics | None = None

    @property
    def step(self) -> int:
        return self.progress.step if self.progress is not None else 0


def started_status(before: RunStatus | None) -> RunStatus:
    """Return the status of a run that this process starts now, after an earlier run of the same job."""
    now = time.time()
    first = now if before is None else before.first_started_at or before.started_at
    return RunStatus(
        first_started_at=first,
        phase=Phase.RUNNING,
        step=before.step if before is not None else 0,
        runner=os.getpid(),
        started_at=now,
        active_seconds=before.active_seconds if before is not None else 0.0,
    )


def ended_status(status: RunStatus, phase: Phase, message: str, last: FinalProgress) -> RunStatus:
    """Return the status of a run that ends now."""
    now = time.time()
    values = last.metrics.values if last.metrics is not None else status.metrics
    return status.model_copy(
        update={
            "phase": phase,
            "message": message,
            "step": last.step or status.step,
            # JSON cannot represent NaN and infinities.
            "metrics": {name: value for name, value in values.items() if math.isfinite(value)},
            "ended_at": now,
            "active_seconds": status.active_seconds + now - status.started_at,
        }
    )


def read_status(path: Path) -> RunStatus | None:
    """Read the status; None where no run was started. Raises RunRefused for an invalid file."""
    try:
        return RunStatus.model_validate_json(path.read_text())
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise RunRefused(
            f"{path} is damaged ({error.errors()[0]['msg']}): start again with --fresh"
        ) from error
