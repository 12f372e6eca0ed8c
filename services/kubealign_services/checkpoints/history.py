"""History of trained steps with their prompts: one JSON line for each step."""

import os
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from kubealign_services.checkpoints.durable_files import fsync_path, replace_file

#: Name of the history in the run directory.
HISTORY_FILE = "history.jsonl"


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
    """The file HISTORY_FILE.

    A crash during an append leaves a torn last line, which counts as not written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def append(self, line: TrainedStep) -> None:
        """Append a step durably. Raises OSError."""
        new = not self._path.exists()
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

    def truncate_after(self, step: int) -> None:
        """Remove the steps after `step`, as after a rollback. Raises CorruptHistory, OSError."""
        remaining = [line for line in self.read() if line.step <= step]
        if self._path.exists():
            replace_file(self._path, (line.to_line() for line in remaining))


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
