"""What became of a run: status.json."""

import math
import os
import time
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from kubealign.local.failure import RunRefused
from kubealign.read_model import JobProgress, StepMetrics


class Phase(StrEnum):
    """RUNNING in the file of a runner that is gone: it was killed. STOPPED: by a signal, with work left."""

    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    STOPPED = "Stopped"


class RunStatus(BaseModel):
    """One job's run. Times are seconds since the epoch."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    phase: Phase
    #: Why it failed or stopped, as a person would say it.
    message: str = ""
    #: The last step that was seen.
    step: int = 0
    #: Process id of the runner.
    runner: int
    #: When the first runner of the job started.
    first_started_at: float | None = None
    #: When the runner started, and ended.
    started_at: float
    ended_at: float | None = None
    #: Time that the job has run, in seconds, over all runners that ended in good order.
    active_seconds: float = 0.0
    #: Metrics of the last step.
    metrics: dict[str, float] = {}

    def write(self, path: Path) -> None:
        draft = path.with_name(f".{path.name}")
        draft.write_text(self.model_dump_json(indent=2) + "\n")
        draft.replace(path)


@dataclass(frozen=True)
class Seen:
    """What the job last said of itself; None: nothing."""

    progress: JobProgress | None = None
    metrics: StepMetrics | None = None

    @property
    def step(self) -> int:
        return self.progress.step if self.progress is not None else 0


def begun(before: RunStatus | None) -> RunStatus:
    """The status of a run that this process starts now, after an earlier one of the same job."""
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


def ended(status: RunStatus, phase: Phase, message: str, last: Seen) -> RunStatus:
    """The status of a run that ends now."""
    now = time.time()
    values = last.metrics.values if last.metrics is not None else status.metrics
    return status.model_copy(
        update={
            "phase": phase,
            "message": message,
            "step": last.step or status.step,
            # JSON has no number for the others.
            "metrics": {name: value for name, value in values.items() if math.isfinite(value)},
            "ended_at": now,
            "active_seconds": status.active_seconds + now - status.started_at,
        }
    )


def read_status(path: Path) -> RunStatus | None:
    """None where no run was started. Raises RunRefused for a file that is not a status."""
    try:
        return RunStatus.model_validate_json(path.read_text())
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise RunRefused(
            f"{path} is damaged ({error.errors()[0]['msg']}): start again with --fresh"
        ) from error
