"""Stores results on disk: one file per line, written when the line is done."""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.bench.line import Form, Line, Outcome

#: A machine counts as quiet if everything else uses at most this many cores.
QUIET = 0.1


@dataclass(frozen=True)
class Result:
    """Result of one line. seconds: duration of the run. others_cores: mean number of cores that everything
    else on the machine used meanwhile."""

    line: str
    form: str
    figures: dict[str, float]
    detail: dict[str, Any]
    notes: list[str]
    command: str
    taken_at: str
    seconds: float
    others_cores: float
    machine: dict[str, Any]


def made(
    line: Line, form: Form, outcome: Outcome, begun: float, others_cores: float, machine: Mapping[str, Any]
) -> Result:
    """Return the result of a run. begun: start of the run, in seconds since the epoch."""
    option = "" if form is Form.QUICK else f" --{form}"
    return Result(
        line.name,
        form,
        outcome.figures,
        outcome.detail,
        outcome.notes,
        f"python -m tests.bench {line.name}{option}",
        time.strftime("%Y-%m-%d %H:%M", time.gmtime(begun)),
        time.time() - begun,
        others_cores,
        dict(machine),
    )


def path_of(folder: Path, name: str, form: Form) -> Path:
    return folder / f"{name}.{form}.json"


def keep(result: Result, folder: Path) -> Path:
    """Write a result, replacing the previous one of the same form. Return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = path_of(folder, result.line, Form(result.form))
    path.write_text(json.dumps(asdict(result), indent=1))
    return path


def read(path: Path) -> Result:
    return Result(**json.loads(path.read_text()))


def newest(folder: Path, names: Sequence[str]) -> dict[str, Result]:
    """Return the results by line, in the order of the names: the full form if it exists, else the quick form.
    Unmeasured lines are left out."""
    results = {}
    for name in names:
        paths = [path_of(folder, name, form) for form in (Form.FULL, Form.QUICK)]
        path = next((path for path in paths if path.is_file()), None)
        if path is not None:
            results[name] = read(path)
    return results
