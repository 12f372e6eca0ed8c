"""What was measured, kept on the disk: one file a line, written when the line is done."""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.bench.line import Form, Line, Outcome

#: Others' cores below which a machine counts as quiet.
QUIET = 0.1


@dataclass(frozen=True)
class Result:
    """One line's. seconds: that it took. others_cores: cores that everything else on the machine used
    meanwhile, on average."""

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
    """begun: time.time() before the run."""
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
    """Write it, in place of what was measured before in the same form."""
    folder.mkdir(parents=True, exist_ok=True)
    path = path_of(folder, result.line, Form(result.form))
    path.write_text(json.dumps(asdict(result), indent=1))
    return path


def read(path: Path) -> Result:
    return Result(**json.loads(path.read_text()))


def newest(folder: Path, names: Sequence[str]) -> dict[str, Result]:
    """By line, in the order of the names: the full form where there is one, else the quick one; a line that
    was not measured is left out."""
    found = {}
    for name in names:
        paths = [path_of(folder, name, form) for form in (Form.FULL, Form.QUICK)]
        path = next((path for path in paths if path.is_file()), None)
        if path is not None:
            found[name] = read(path)
    return found
