"""History of trained steps with their prompts: one JSON line for each step, one file for each fence.

A driver appends to the file of its own fence only, so a replaced driver cannot overwrite a line of its
successor. The history of a run is what its lineage includes of all files.
"""

import os
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from kubealign_services.checkpoints.durable_files import fsync_path
from kubealign_services.checkpoints.lineage import UNRECORDED_FENCE, Lineage, read_lineage

#: Folder of the history in the run directory.
HISTORY_FOLDER = "history"
#: The one file of a run that an older release has begun: still read, and no longer written.
UNRECORDED_HISTORY_FILE = "history.jsonl"


class CorruptHistory(ValueError):
    """A line other than the last one cannot be read. Names the line."""


class TrainedStep(BaseModel):
    """One completed TrainStep.

    prompts: ids of the prompts trained on; empty for a step without prompts. dropped: with a curriculum, ids
    of the prompts that dynamic sampling dropped from the step. mean_rewards: with a curriculum, the mean
    reward of each of `prompts`, then of each of `dropped`; None: the reward applies to none of its samples.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    fence: int
    step: int
    version: int
    prompts: list[str]
    dropped: list[str] = []
    mean_rewards: list[float | None] = []

    def to_line(self) -> bytes:
        """Return the line of the step, without fields that only a curriculum sets if there is none."""
        return self.model_dump_json(exclude_defaults=True).encode() + b"\n"


class StepHistory:
    """A file of steps.

    A crash during an append leaves a torn last line, which counts as not written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def append(self, line: TrainedStep) -> None:
        """Append a step durably. Raises OSError."""
        new = not self._path.exists()
        if new and not self._path.parent.exists():
            self._path.parent.mkdir(exist_ok=True)
            fsync_path(self._path.parent.parent)
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            end = _complete_bytes(descriptor)
            os.ftruncate(descriptor, end)
            rest = memoryview(line.to_line())
            while rest:
                written = os.pwrite(descriptor, rest, end)
                end += written
                rest = rest[written:]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if new:
            fsync_path(self._path.parent)

    def read(self) -> list[TrainedStep]:
        """Return all steps in the order of writing. Raises CorruptHistory."""
        if not self._path.exists():
            return []
        *lines, _torn = self._path.read_bytes().split(b"\n")
        steps = []
        for number, line in enumerate(lines, start=1):
            try:
                steps.append(TrainedStep.model_validate_json(line))
            except ValidationError as error:
                raise CorruptHistory(f"{self._path}, line {number} is not a step: {line[:200]!r}") from error
        return steps


def history_path(run_dir: Path, fence: int) -> Path:
    """Return the file of a fence's steps."""
    if fence == UNRECORDED_FENCE:
        return run_dir / UNRECORDED_HISTORY_FILE
    return run_dir / HISTORY_FOLDER / f"fence-{fence:08d}.jsonl"


def read_history(run_dir: Path, lineage: Lineage | None = None) -> list[TrainedStep]:
    """Return the steps of a lineage, each once, in their order.

    Args:
        lineage: None: the lineage of the newest driver.

    Raises:
        CorruptHistory: A line other than the last one of a file cannot be read.
        CorruptLineage: The start of a fence cannot be read.
    """
    lineage = read_lineage(run_dir) if lineage is None else lineage
    steps: dict[int, TrainedStep] = {}
    for fence in reversed(lineage.last_steps):
        for line in StepHistory(history_path(run_dir, fence)).read():
            if lineage.includes(fence, line.step):
                steps[line.step] = line
    return [steps[number] for number in sorted(steps)]


def _complete_bytes(descriptor: int) -> int:
    """Return the number of bytes up to and including the last newline."""
    end = os.fstat(descriptor).st_size
    while end > 0:
        start = max(0, end - 65536)
        newline = os.pread(descriptor, end - start, start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0
