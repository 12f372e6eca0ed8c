"""Reads metrics and samples from the files of a run directory."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from kubealign.client.backends.local.json_lines import is_after, objects_after, objects_from_end
from kubealign.read_model import STREAM_START, SampleRecord, StepMetrics, parse_number, parse_sample
from kubealign.validation_record import ValidationRecord, parse_validation_record

_NON_METRIC_FIELDS = ("step", "fence", "time")
#: Number of last lines searched for a training step: validation metrics have lines of their own.
_TAIL_LINES = 16


@dataclass(frozen=True)
class LastStep:
    """Last trained step. `time` is its reporting time in seconds since the epoch."""

    step: int
    time: float
    values: Mapping[str, float]


def read_metrics(path: Path, after: str, count: int) -> list[StepMetrics]:
    """Read at most `count` steps of metrics.jsonl after an entry. Raises JobInvalid for an invalid entry."""
    return [
        StepMetrics(
            entry, _int_field(document, "step"), _int_field(document, "fence"), _metric_values(document)
        )
        for entry, document in islice(objects_after(path, after), count)
    ]


def read_last_step(path: Path) -> LastStep | None:
    """Read the last step of metrics.jsonl; None if no step was trained yet."""
    for _, document in islice(objects_from_end(path), _TAIL_LINES):
        values = _metric_values(document)
        if any(not name.startswith("val/") for name in values):
            return LastStep(_int_field(document, "step"), float(document.get("time") or 0.0), values)
    return None


def read_samples(path: Path, after: str, count: int, *, step: int | None, newest: bool) -> list[SampleRecord]:
    """Read samples of samples.jsonl; see TelemetrySource.samples.

    Of a step that was repeated, only the samples of the last attempt are returned.
    """
    if step is not None:
        selected = list(_step_samples(path, step, after))
        return selected[:count] if newest else selected[::-1][:count]
    if newest:
        selected = []
        for entry, document in objects_from_end(path):
            if len(selected) == count or not is_after(entry, after):
                break
            selected.append(_to_sample(entry, document))
        return selected
    return [_to_sample(entry, document) for entry, document in islice(objects_after(path, after), count)]


def read_validation(folder: Path, step: int) -> list[ValidationRecord]:
    """Read the responses to held-out prompts at a step, by evaluation set and row; empty without any.

    Args:
        folder: Contains step-N.jsonl, and a folder with such files for each evaluation set.
    """
    name = f"step-{step:06d}.jsonl"
    records = [
        parse_validation_record(document, "" if path.parent == folder else path.parent.name)
        for path in sorted([folder / name, *folder.glob(f"*/{name}")])
        for _, document in objects_after(path, STREAM_START)
    ]
    return sorted(records, key=lambda record: (record.set_name, record.row))


def _step_samples(path: Path, step: int, after: str) -> Iterator[SampleRecord]:
    """Yield the samples of the step's last attempt, newest first."""
    is_in_step = False
    for entry, document in objects_from_end(path):
        if not is_after(entry, after):
            return
        if _int_field(document, "step") == step:
            is_in_step = True
            yield _to_sample(entry, document)
        elif is_in_step:
            return


def _to_sample(entry: str, document: dict[str, Any]) -> SampleRecord:
    return parse_sample(entry, _int_field(document, "step"), document)


def _metric_values(document: Mapping[str, Any]) -> dict[str, float]:
    return {
        name: number
        for name, value in document.items()
        if name not in _NON_METRIC_FIELDS and (number := parse_number(value)) is not None
    }


def _int_field(document: Mapping[str, Any], name: str) -> int:
    value = document.get(name)
    return value if isinstance(value, int) else 0
