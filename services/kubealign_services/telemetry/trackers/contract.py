"""Tracker contract: destinations of a job's metrics besides its own files."""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol, runtime_checkable


class RunOutcome(StrEnum):
    """Outcome of a driver run. STOPPED: the job continues in another run."""

    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    STOPPED = "Stopped"


@dataclass(frozen=True)
class TrackedJob:
    """Description of the job for a tracker.

    `spec`: the spec of the job's document, without defaults and podTemplates.
    """

    name: str
    namespace: str
    spec: Mapping[str, Any]


class Tracker(Protocol):
    """Receives the metrics of one job.

    All methods are called on one thread, which may block. Exceptions are logged and end only the tracker.
    The tracker of a restarted job continues the previous one.
    """

    def step(self, step: int, fence: int, metrics: Mapping[str, float]) -> None:
        """Record the metrics of a step, or of a validation at the step.

        After a rollback a step is repeated, with a higher fence.
        """

    def close(self, outcome: RunOutcome) -> None:
        """Flush and close."""


@runtime_checkable
class CompletionTracker(Tracker, Protocol):
    """A tracker that also records sampled responses."""

    def completions(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Record responses of a step, or of a validation at the step (`completions.completion_rows`).

        At least one row. Called with at most as many rows as the tracker's `completions` in the spec.
        """


class TrackerNotInstalled(Exception):
    """A library that a tracker needs is missing. The text says what to install."""


@dataclass(frozen=True)
class RequiredLibrary:
    """A library that a tracker needs. `module`: its import name."""

    module: str

    def check(self, name: str) -> None:
        """Raise TrackerNotInstalled when the module cannot be imported."""
        from importlib.util import find_spec

        if find_spec(self.module) is None:
            raise TrackerNotInstalled(
                f"spec.trackers, {name}: {self.module} is not installed where the driver runs: "
                "pip install 'kubealign[trackers]'"
            )


def make_tracker_folder(run_dir: Path, name: str) -> Path:
    """Create and return the folder of a tracker's files."""
    folder = run_dir / "trackers" / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def get_or_create_run_id(folder: Path) -> str:
    """Return the run id of the folder; create one when there is none."""
    path = folder / "run-id"
    if not path.exists():
        draft = path.with_suffix(".draft")
        draft.write_text(uuid.uuid4().hex[:16])
        draft.replace(path)
    return path.read_text()
