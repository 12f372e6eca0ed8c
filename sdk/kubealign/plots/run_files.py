"""Reads the metrics of runs from files: run directories, metrics.jsonl, and the files of others."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kubealign.client.backends.local.metrics import read_metrics
from kubealign.client.metrics_table import MetricsTable
from kubealign.plots.curves import PlotError, RunMetrics
from kubealign.read_model import STREAM_START, parse_number

_METRICS = "metrics.jsonl"
_TRAINER_STATE = "trainer_state.json"
_KINDS = (
    f"a run directory, a {_METRICS}, a {_TRAINER_STATE} of transformers or TRL, or rows of "
    "`kubealign metrics JOB -o json`"
)
#: Keys of a Trainer's log entry that are not metrics.
_NOT_METRICS = ("step", "epoch")
_MAX_STEPS = 10_000_000


def read_run(name: str, runs_folder: Path) -> RunMetrics:
    """Read a run.

    Args:
        name: Path of a file or folder, or name of a run directory in `runs_folder`.

    Raises PlotError where there is no such run, it has no metrics, or its file has another format.
    """
    path = _locate(name, runs_folder)
    rows = _read_rows(path)
    if not rows:
        raise PlotError(f"{path} has no metrics yet")
    return RunMetrics(name, rows)


def _locate(name: str, runs_folder: Path) -> Path:
    candidates = [Path(name), runs_folder / name]
    for candidate in candidates:
        if candidate.is_file():
            return candidate
        for file in (_METRICS, _TRAINER_STATE):
            if (candidate / file).is_file():
                return candidate / file
    looked = " or ".join(dict.fromkeys(str(candidate) for candidate in candidates))
    raise PlotError(f"no run {name}: {looked} is not {_KINDS}")


def _read_rows(path: Path) -> list[Mapping[str, float]]:
    """Return the rows by step."""
    if path.suffix == ".jsonl":
        return list(MetricsTable.from_steps(read_metrics(path, STREAM_START, _MAX_STEPS)).rows)
    try:
        document = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise PlotError(f"{path} cannot be read as JSON ({error}); allowed: {_KINDS}") from error
    entries = document.get("log_history") if isinstance(document, dict) else document
    if not isinstance(entries, list) or not all(_is_row(entry) for entry in entries):
        raise PlotError(f"{path} has no list of rows with a step; allowed: {_KINDS}")
    by_step: dict[int, dict[str, float]] = {}
    for entry in entries:
        row = by_step.setdefault(entry["step"], {"step": entry["step"]})
        row |= {
            name: number
            for name, value in entry.items()
            if name not in _NOT_METRICS and (number := parse_number(value)) is not None
        }
    return [by_step[step] for step in sorted(by_step)]


def _is_row(entry: Any) -> bool:
    return isinstance(entry, dict) and isinstance(entry.get("step"), int)
