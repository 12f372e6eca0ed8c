"""Tracker that writes selected metrics as comma-separated values."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

from kubealign_services.telemetry.trackers.contract import RunOutcome, TrackedJob


class CsvTracker:
    """Writes figures.csv in the tracker's folder: one line per step, empty fields for missing metrics."""

    def __init__(self, job: TrackedJob, folder: Path, figures: Sequence[str]) -> None:
        path = folder / "figures.csv"
        begun = path.exists()
        # Line-buffered: a reader that follows the file sees whole lines. A restarted job appends to the file.
        self._file = path.open("a", buffering=1, newline="", encoding="utf-8")
        self._figures = list(figures)
        self._lines = csv.writer(self._file)
        if not begun:
            self._lines.writerow(["job", "step", "fence", *self._figures])
        self._job = job.name

    def step(self, step: int, fence: int, metrics: Mapping[str, float]) -> None:
        self._lines.writerow([self._job, step, fence, *(metrics.get(name, "") for name in self._figures)])

    def close(self, ending: RunOutcome) -> None:
        self._file.close()
