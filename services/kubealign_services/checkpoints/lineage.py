"""Lineage of a run: the fences, each up to a step, that led to the state of the newest driver.

A driver records the step that it continues from, and the fence before it, once it has restored this step.
Whatever a replaced driver writes after that step belongs to no lineage, however late the write arrives.
"""

from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kubealign_services.checkpoints.durable_files import replace_file
from kubealign_services.checkpoints.fence import FENCES_FOLDER, Fence

#: Fence of checkpoints and history lines that an older release wrote, which did not record starts.
UNRECORDED_FENCE = 0


class CorruptLineage(ValueError):
    """The recorded start of a fence cannot be read. Names the file."""


class FenceStart(BaseModel):
    """Start of a driver. parent: the fence that it continues; UNRECORDED_FENCE: none recorded its start.

    step: the step that it continues from, 0 for the initial weights.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    fence: int = Field(ge=1)
    parent: int = Field(ge=UNRECORDED_FENCE)
    step: int = Field(ge=0)


@dataclass(frozen=True)
class Lineage:
    """Fences of a lineage, newest first, each with its last step; None: all steps."""

    last_steps: dict[int, int | None]

    def includes(self, fence: int, step: int) -> bool:
        """Return True if the lineage includes this step of this fence."""
        if fence not in self.last_steps:
            return False
        last_step = self.last_steps[fence]
        return last_step is None or step <= last_step


def read_lineage(run_dir: Path, before: int | None = None) -> Lineage:
    """Return the lineage of the highest fence whose start is recorded.

    Args:
        before: Only fences below this number; None: all.

    Raises:
        CorruptLineage: A start cannot be read, or the start of a parent is missing.
    """
    fence = _latest_start(run_dir, before)
    last_steps: dict[int, int | None] = {}
    last_step: int | None = None
    while fence != UNRECORDED_FENCE:
        last_steps[fence] = last_step
        start = _read_start(run_dir, fence)
        last_step = start.step if last_step is None else min(last_step, start.step)
        fence = start.parent
    last_steps[UNRECORDED_FENCE] = last_step
    return Lineage(last_steps)


def record_start(fence: Fence, step: int) -> Lineage:
    """Record durably that a driver continues the newest lineage before it from `step`. Return its lineage.

    Raises:
        StaleFence: Another driver has taken over.
        CorruptLineage: An earlier start cannot be read.
        OSError: The start cannot be written.
    """
    parent = _latest_start(fence.run_dir, fence.number)
    start = FenceStart(fence=fence.number, parent=parent, step=step)
    fence.check()
    path = _start_path(fence.run_dir, fence.number)
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, [start.model_dump_json().encode() + b"\n"])
    return read_lineage(fence.run_dir, fence.number + 1)


def _start_path(run_dir: Path, fence: int) -> Path:
    return run_dir / FENCES_FOLDER / f"{fence}.json"


def _latest_start(run_dir: Path, before: int | None) -> int:
    """Return the highest fence with a recorded start, below `before`; UNRECORDED_FENCE: there is none."""
    try:
        paths = list((run_dir / FENCES_FOLDER).glob("*.json"))
    except FileNotFoundError:
        return UNRECORDED_FENCE
    numbers = [int(path.stem) for path in paths if path.stem.isdecimal()]
    return max((number for number in numbers if before is None or number < before), default=UNRECORDED_FENCE)


def _read_start(run_dir: Path, fence: int) -> FenceStart:
    path = _start_path(run_dir, fence)
    try:
        start = FenceStart.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise CorruptLineage(f"{path} does not record the start of fence {fence}: {error}") from error
    if start.fence != fence or start.parent >= fence:
        raise CorruptLineage(f"{path} names fence {start.fence} after {start.parent}")
    return start
