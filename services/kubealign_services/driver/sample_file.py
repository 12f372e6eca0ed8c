"""The samples that a run shows, kept in its folder: what a display finds when Redis has gone."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kubealign_services.driver.line_file import append
from kubealign_services.telemetry.plain import to_json

BOUND_BYTES = 64 * 2**20


class SampleFile:
    """One JSON object a line: the step, and the sample's fields as the read model has them.

    The file only grows, so that a line's place names it, and stays below `bound` bytes: the fuller it is, the
    fewer steps are kept. Of every

        2 ** floor(log2(bound / (bound - size)))

    steps one: all until it is half full, every second until three quarters, and so on.
    """

    def __init__(self, path: Path, bound: int = BOUND_BYTES) -> None:
        self._path = path
        self._bound = bound

    def step(self, step: int, fence: int, metrics: Mapping[str, float]) -> None:
        """A sink's; figures have a file of their own."""

    def samples(self, step: int, samples: Sequence[Mapping[str, Any]]) -> None:
        """Append a step's samples, or leave them out."""
        size = self._path.stat().st_size if self._path.exists() else 0
        lines = "".join(to_json({"step": step, **sample}) + "\n" for sample in samples)
        if size + len(lines.encode()) < self._bound and step % self._stride(size) == 0:
            append(self._path, lines)

    def _stride(self, size: int) -> int:
        return int(2 ** math.floor(math.log2(self._bound / (self._bound - size))))
