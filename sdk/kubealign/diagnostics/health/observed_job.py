"""Input of the health rules: a job's document, metrics and processes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kubealign.client.records import ProcessRecord
from kubealign.diagnostics.health.series import MetricSeries
from kubealign.spec.algorithms import Requirement, ResultKind
from kubealign.spec.dependencies import algorithm_class_of, result_kind_of


@dataclass(frozen=True)
class ObservedJob:
    """One observed job."""

    resource: Mapping[str, Any]
    series: MetricSeries
    processes: Sequence[ProcessRecord]

    @property
    def phase(self) -> str:
        return str(self._get("status", "phase") or "")

    @property
    def algorithm(self) -> Mapping[str, Any]:
        """Fields of the algorithm's entry in the union."""
        union = self._get("spec", "algorithm")
        entry = next(iter(union.values()), None) if isinstance(union, Mapping) else None
        return entry if isinstance(entry, Mapping) else {}

    @property
    def result_kind(self) -> ResultKind | None:
        """Kind of the job's result."""
        union = self._get("spec", "algorithm")
        return result_kind_of(union) if isinstance(union, Mapping) else None

    @property
    def learns_without_rewards(self) -> bool:
        """True if rewards are optional for the algorithm and the job names none."""
        union = self._get("spec", "algorithm")
        algorithm = algorithm_class_of(union) if isinstance(union, Mapping) else None
        return (
            algorithm is not None
            and algorithm.rewards is Requirement.ALLOWED
            and not self._get("spec", "rewards")
        )

    def spec_field(self, *path: str) -> Any:
        """Return the value of a field below the spec; None: the job does not set the field."""
        return self._get("spec", *path)

    def algorithm_number(self, name: str, default: float) -> float:
        """Return a number of the algorithm's entry, or the default."""
        return _number(self.algorithm.get(name), default)

    def _get(self, *path: str) -> Any:
        value: Any = self.resource
        for name in path:
            value = value.get(name) if isinstance(value, Mapping) else None
        return value


def _number(value: Any, default: float) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else default


def format_number(value: float) -> str:
    """Format a number for the texts."""
    return f"{value:.3g}"


def format_share(value: float) -> str:
    """Format a share as a percentage."""
    return f"{100 * value:.0f} %"
