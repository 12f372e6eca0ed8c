"""What a tracker is: somewhere that a job's figures go besides its own files."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol


class Ending(StrEnum):
    """How a driver ended. STOPPED: the job goes on in another one."""

    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    STOPPED = "Stopped"


@dataclass(frozen=True)
class TrackedJob:
    """What a tracker is told of the job. `spec`: as in its document, without defaults and podTemplates."""

    name: str
    namespace: str
    spec: Mapping[str, Any]


class Tracker(Protocol):
    """One job's place. All its methods are called on one thread, which may block; what they raise is
    logged and ends nothing but the tracker. A tracker of a job that was restarted goes on where the last
    one was."""

    def step(self, step: int, fence: int, metrics: Mapping[str, float]) -> None:
        """Figures of a step, or of a validation at it. After a rollback a step comes again, under a higher
        fence."""

    def close(self, ending: Ending) -> None:
        """What was given is written, or sent."""


class NotInstalled(Exception):
    """A library that a tracker needs is not there. The text says what to install."""


@dataclass(frozen=True)
class Library:
    """What must be importable for a tracker. `module`: by its import name."""

    module: str

    def check(self, name: str) -> None:
        """Raises NotInstalled."""
        from importlib.util import find_spec

        if find_spec(self.module) is None:
            raise NotInstalled(
                f"spec.trackers, {name}: {self.module} is not installed where the driver runs: "
                "pip install 'kubealign[trackers]'"
            )


def folder_of(run_dir: Path, name: str) -> Path:
    """Where a tracker's files lie; made."""
    folder = run_dir / "trackers" / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder
