"""Records of runs: one file per run, which `kubealign plot` reads as well."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.bench.process import ROOT

#: Folder of the pages, which are published, and of the records below it.
PAGES = ROOT / "docs" / "results"
OURS, PEER = "kubealign", "trl"


@dataclass(frozen=True)
class RunRecord:
    """One run of one side.

    Args:
        command: Command line, relative to the repository's root.
        taken_at: Start, UTC.
        seconds: Duration of the whole command.
        others_cores: Mean number of cores that everything else on the machine used meanwhile.
        log_history: Rows by step, with `step`, `seconds/step` and the recipe's metrics.
    """

    recipe: str
    side: str
    seed: int
    command: str
    taken_at: str
    seconds: float
    others_cores: float
    machine: dict[str, Any]
    log_history: list[dict[str, float]]

    def last(self, metric: str) -> float:
        """Return the last value of a metric. Raises KeyError if it was never reported."""
        return next(row for row in reversed(self.log_history) if metric in row)[metric]

    def first(self, metric: str) -> float:
        """Return the first value of a metric. Raises KeyError if it was never reported."""
        return next(row for row in self.log_history if metric in row)[metric]

    @property
    def step_seconds(self) -> list[float]:
        return [row["seconds/step"] for row in self.log_history if "seconds/step" in row]


def record_path(folder: Path, recipe: str, side: str, seed: int) -> Path:
    return folder / "runs" / recipe / f"{side}-seed-{seed}.json"


def write_record(folder: Path, record: RunRecord) -> Path:
    """Write a record in place of an earlier one, and return its path."""
    path = record_path(folder, record.recipe, record.side, record.seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(asdict(record), indent=1) + "\n")
    partial.replace(path)
    return path


def read_records(folder: Path, recipe: str, side: str) -> list[RunRecord]:
    """Return the records of a side in the order of their seeds."""
    paths = (folder / "runs" / recipe).glob(f"{side}-seed-*.json")
    records = [RunRecord(**json.loads(path.read_text())) for path in paths]
    return sorted(records, key=lambda record: record.seed)


def select_rows(lines: Sequence[dict[str, Any]], metrics: Sequence[str]) -> list[dict[str, float]]:
    """Merge the lines of each step, and drop all but the step's seconds and the metrics."""
    names = {"seconds/step", *metrics}
    by_step: dict[int, dict[str, float]] = {}
    for line in lines:
        row = by_step.setdefault(line["step"], {"step": line["step"]})
        row |= {name: value for name, value in line.items() if name in names}
    return [by_step[step] for step in sorted(by_step)]
