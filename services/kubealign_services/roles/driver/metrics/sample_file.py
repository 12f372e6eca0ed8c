"""File of previewed samples in the run directory, for displays when Redis is gone."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kubealign_services.roles.driver.metrics.line_file import append_lines
from kubealign_services.telemetry.json_values import to_json

MAX_FILE_BYTES = 64 * 2**20


class SampleFile:
    """Metric sink that writes one JSON object per line: the step, and the sample's fields in the read model's
    form.

    The file only grows, so that a line's position identifies it, and stays below `max_bytes`: the fuller
    it is, the fewer steps are kept. Of every

        2 ** floor(log2(max_bytes / (max_bytes - size)))

    steps one is kept: all until the file is half full, every second until three quarters, and so on.
    """

    def __init__(self, path: Path, max_bytes: int = MAX_FILE_BYTES) -> None:
        self._path = path
        self._max_bytes = max_bytes

    def step(self, step: int, fence: int, metrics: Mapping[str, float]) -> None:
        """Ignore metrics: `metrics.jsonl` contains them."""

    def samples(self, step: int, samples: Sequence[Mapping[str, Any]]) -> None:
        """Append a step's samples, or drop them if the step is not among those kept."""
        size = self._path.stat().st_size if self._path.exists() else 0
        lines = "".join(to_json({"step": step, **sample}) + "\n" for sample in samples)
        if size + len(lines.encode()) < self._max_bytes and step % self._stride(size) == 0:
            append_lines(self._path, lines)

    def _stride(self, size: int) -> int:
        """Return the number of steps of which one is kept at this file size."""
        return int(2 ** math.floor(math.log2(self._max_bytes / (self._max_bytes - size))))
