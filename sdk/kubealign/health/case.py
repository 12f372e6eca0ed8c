"""What the rules look at: a job's document, its figures, its processes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kubealign.client.records import ProcessRecord
from kubealign.health.series import Series
from kubealign.spec.algorithms import Makes
from kubealign.spec.dependencies import made_by


@dataclass(frozen=True)
class Case:
    """One job."""

    resource: Mapping[str, Any]
    series: Series
    processes: Sequence[ProcessRecord]

    @property
    def phase(self) -> str:
        return str(self._at("status", "phase") or "")

    @property
    def algorithm(self) -> Mapping[str, Any]:
        """What its entry in the union holds."""
        union = self._at("spec", "algorithm")
        entry = next(iter(union.values()), None) if isinstance(union, Mapping) else None
        return entry if isinstance(entry, Mapping) else {}

    @property
    def makes(self) -> Makes | None:
        """What the job's result is."""
        union = self._at("spec", "algorithm")
        return made_by(union) if isinstance(union, Mapping) else None

    def setting(self, default: float, *path: str) -> float:
        """A number below the spec, or what it is when nothing is said."""
        return _number(self._at("spec", *path), default)

    def of_algorithm(self, name: str, default: float) -> float:
        """A number of the algorithm's entry, or what it is when nothing is said."""
        return _number(self.algorithm.get(name), default)

    def _at(self, *path: str) -> Any:
        held: Any = self.resource
        for name in path:
            held = held.get(name) if isinstance(held, Mapping) else None
        return held


def _number(held: Any, default: float) -> float:
    return float(held) if isinstance(held, int | float) and not isinstance(held, bool) else default


def shown(value: float) -> str:
    """A number as the texts have it."""
    return f"{value:.3g}"


def share(value: float) -> str:
    return f"{100 * value:.0f} %"
