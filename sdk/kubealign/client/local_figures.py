"""What a run's files hold of its figures and samples."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from kubealign.client.local_lines import is_after, objects_after, objects_before_end
from kubealign.read_model import Sample, StepMetrics, number_of, sample_of

_NO_FIGURES = ("step", "fence", "time")
#: A step's own line is among the last few: what is measured beside it has lines of its own.
_RECENT = 16


@dataclass(frozen=True)
class Newest:
    """The last step that was trained. `time`: when it was told, in seconds since the epoch."""

    step: int
    time: float
    values: Mapping[str, float]


def read_metrics(path: Path, after: str, count: int) -> list[StepMetrics]:
    """Of metrics.jsonl: at most `count` lines after the entry. Raises JobInvalid for what is no entry."""
    return [
        StepMetrics(entry, _whole(held, "step"), _whole(held, "fence"), _values(held))
        for entry, held in islice(objects_after(path, after), count)
    ]


def newest_step(path: Path) -> Newest | None:
    """Of metrics.jsonl; None as long as no step was trained."""
    for _, held in islice(objects_before_end(path), _RECENT):
        values = _values(held)
        if any(not name.startswith("val/") for name in values):
            return Newest(_whole(held, "step"), float(held.get("time") or 0.0), values)
    return None


def read_samples(path: Path, after: str, count: int, *, step: int | None, newest: bool) -> list[Sample]:
    """Of samples.jsonl; see Figures.samples. Of a step that was done again, the last time."""
    if step is not None:
        found = list(_of_step(path, step, after))
        return found[:count] if newest else found[::-1][:count]
    if newest:
        found = []
        for entry, held in objects_before_end(path):
            if len(found) == count or not is_after(entry, after):
                break
            found.append(_sample(entry, held))
        return found
    return [_sample(entry, held) for entry, held in islice(objects_after(path, after), count)]


def _of_step(path: Path, step: int, after: str) -> Iterator[Sample]:
    """Newest first."""
    begun = False
    for entry, held in objects_before_end(path):
        if not is_after(entry, after):
            return
        if _whole(held, "step") == step:
            begun = True
            yield _sample(entry, held)
        elif begun:
            return


def _sample(entry: str, held: dict[str, Any]) -> Sample:
    return sample_of(entry, _whole(held, "step"), held)


def _values(held: Mapping[str, Any]) -> dict[str, float]:
    return {
        name: number
        for name, value in held.items()
        if name not in _NO_FIGURES and (number := number_of(value)) is not None
    }


def _whole(held: Mapping[str, Any], name: str) -> int:
    value = held.get(name)
    return value if isinstance(value, int) else 0
