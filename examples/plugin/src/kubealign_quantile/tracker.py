"""The figures that one wants, as comma-separated values."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

from kubealign_services.telemetry.trackers.contract import RunOutcome, TrackedJob


class CsvTracker:
    """figures.csv in the tracker's folder: a line a step, with these figures; empty where one is missing."""

    def __init__(self, job: TrackedJob, folder: Path, figures: Sequence[str]) -> None:
        path = folder / "figures.csv"
        begun = path.exists()
        # Line-buffered: whoever follows the file sees whole lines. A restarted job goes on in the same file.
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
