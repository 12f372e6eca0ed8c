"""Data types of the benchmark: a line, its aims and its outcome."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from tests.bench.workload import FULL, QUICK, TINY, Workload


class Form(StrEnum):
    """Size of the work. TINY: checks that the benchmark itself works; its figures mean nothing. QUICK:
    minutes, a smaller model. FULL: the work that the table states."""

    TINY = "tiny"
    QUICK = "quick"
    FULL = "full"


@dataclass(frozen=True)
class Bench:
    """Context of a line's run. folder: empty temporary folder of the run. say: prints a progress message."""

    form: Form
    folder: Path
    say: Callable[[str], None]

    @property
    def workload(self) -> Workload:
        """Workload whose responses all have the mean length; `doing` changes it."""
        return {Form.TINY: TINY, Form.QUICK: QUICK, Form.FULL: FULL}[self.form]

    @property
    def tailed(self) -> Workload:
        """Workload with long-tailed response lengths."""
        return self.workload.doing(longest={Form.TINY: 48, Form.QUICK: 512, Form.FULL: 512}[self.form])

    def pick(self, tiny: Any, quick: Any, full: Any) -> Any:
        return {Form.TINY: tiny, Form.QUICK: quick, Form.FULL: full}[self.form]


@dataclass(frozen=True)
class Aim:
    """A bound on one of a line's figures. figure: name of the figure. what: description in the table."""

    figure: str
    what: str
    bound: float
    at_least: bool = True
    percent: bool = False

    def met(self, figures: Mapping[str, float]) -> bool | None:
        """Return whether the bound holds; None if the figure was not measured."""
        value = figures.get(self.figure)
        if value is None:
            return None
        return value >= self.bound if self.at_least else value <= self.bound

    def bound_text(self) -> str:
        return f"at {'least' if self.at_least else 'most'} {self.text(self.bound)}"

    def text(self, value: float) -> str:
        return f"{value:.1%}" if self.percent else f"{value:.3g}"


@dataclass(frozen=True)
class Outcome:
    """Outcome of a line's run. figures: numbers by name, including those that the aims bound. detail: further
    results, serializable as JSON. notes: caveats for readers of the figures."""

    figures: dict[str, float]
    detail: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Line:
    """A line of the benchmark. name: on the command line. title: the measurement. against: the baseline."""

    name: str
    title: str
    against: str
    aims: tuple[Aim, ...]
    run: Callable[[Bench], Outcome]
