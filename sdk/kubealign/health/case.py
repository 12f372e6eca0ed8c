"""Input of the health rules: a job's document, metrics and processes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kubealign.client.records import ProcessRecord
from kubealign.health.series import Series
from kubealign.spec.algorithms import Makes
from kubealign.spec.dependencies import made_by


@dataclass(frozen=True)
class Case:
    """One observed job."""

    resource: Mapping[str, Any]
    series: Series
    processes: Sequence[ProcessRecord]

    @property
    def phase(self) -> str:
        return str(self._at("status", "phase") or "")

    @property
    def algorithm(self) -> Mapping[str, Any]:
        """Fields of the algorithm's entry in the union."""
        union = self._at("spec", "algorithm")
        entry = next(iter(union.values()), None) if isinstance(union, Mapping) else None
        return entry if isinstance(entry, Mapping) else {}

    @property
    def makes(self) -> Makes | None:
        """Kind of the job's result."""
        union = self._at("spec", "algorithm")
        return made_by(union) if isinstance(union, Mapping) else None

    def setting(self, default: float, *path: str) -> float:
        """Return a number below the spec, or the default."""
        return _number(self._at("spec", *path), default)

    def of_algorithm(self, name: str, default: float) -> float:
        """Return a number of the algorithm's entry, or the default."""
        return _number(self.algorithm.get(name), default)

    def _at(self, *path: str) -> Any:
        value: Any = self.resource
        for name in path:
            value = value.get(name) if isinstance(value, Mapping) else None
        return value


def _number(value: Any, default: float) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else default


def shown(value: float) -> str:
    """Format a number for the texts."""
    return f"{value:.3g}"


def share(value: float) -> str:
    """Format a share as a percentage."""
    return f"{100 * value:.0f} %"
