"""What a line of the benchmark is: what is measured, against what, and what is aimed at."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from tests.bench.workload import FULL, QUICK, TINY, Workload


class Form(StrEnum):
    """TINY: whether the benchmark itself works; its figures mean nothing. QUICK: minutes, a smaller model.
    FULL: the work as the table states it."""

    TINY = "tiny"
    QUICK = "quick"
    FULL = "full"


@dataclass(frozen=True)
class Bench:
    """What a line's run is given. folder: of its own, empty, gone afterwards. say: tells the person that
    waits."""

    form: Form
    folder: Path
    say: Callable[[str], None]

    @property
    def workload(self) -> Workload:
        """All responses of the mean length; `doing` changes it."""
        return {Form.TINY: TINY, Form.QUICK: QUICK, Form.FULL: FULL}[self.form]

    @property
    def tailed(self) -> Workload:
        """Responses of long-tailed length."""
        return self.workload.doing(longest={Form.TINY: 48, Form.QUICK: 512, Form.FULL: 512}[self.form])

    def pick(self, tiny: Any, quick: Any, full: Any) -> Any:
        return {Form.TINY: tiny, Form.QUICK: quick, Form.FULL: full}[self.form]


@dataclass(frozen=True)
class Aim:
    """A bound on one of a line's figures. figure: its name. what: in the words of the table."""

    figure: str
    what: str
    bound: float
    at_least: bool = True
    percent: bool = False

    def met(self, figures: Mapping[str, float]) -> bool | None:
        """None: the figure was not measured."""
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
    """figures: numbers by name, those that the aims bound among them. detail: all else that is worth keeping,
    as JSON holds it. notes: what whoever reads the figures must know."""

    figures: dict[str, float]
    detail: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Line:
    """name: as it is asked for. title: what is measured. against: what it is measured against."""

    name: str
    title: str
    against: str
    aims: tuple[Aim, ...]
    run: Callable[[Bench], Outcome]
