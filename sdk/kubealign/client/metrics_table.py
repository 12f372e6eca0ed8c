"""Metrics of a job as a table with one row per step."""

import html
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, overload

from kubealign.client.errors import NotPossible
from kubealign.read_model import StepMetrics

if TYPE_CHECKING:
    import pandas

_VALIDATION_PREFIX = "val/"
_MAX_HTML_ROWS = 10
_MAX_HTML_COLUMNS = 8
_PREFERRED_COLUMNS = ("reward/mean", "kl/reference", "sft/loss", "rm/loss", "policy/loss", "response/length")


class MetricsTable(Sequence[dict[str, float]]):
    """Sequence of rows: each row is a dict with `step` and the metrics of that step (docs/metrics.md),
    validation included.

    Steps that were repeated after a rollback appear once, with the values reported last.
    """

    def __init__(self, rows: Iterable[Mapping[str, float]]) -> None:
        self.rows: list[dict[str, float]] = [dict(row) for row in rows]

    @classmethod
    def from_steps(cls, reported: Iterable[StepMetrics]) -> "MetricsTable":
        """Build the table from all reported steps, in reporting order."""
        trained: dict[int, dict[str, float]] = {}
        validated: dict[int, dict[str, float]] = {}
        fence = 0
        for metrics in reported:
            validation = {
                name: value for name, value in metrics.values.items() if name.startswith(_VALIDATION_PREFIX)
            }
            values = {name: value for name, value in metrics.values.items() if name not in validation}
            if metrics.fence < fence:
                # Reported by a driver that has been replaced.
                continue
            if metrics.fence > fence and values:
                # A driver that resumes from a checkpoint discards the steps after it.
                fence = metrics.fence
                trained = {step: value for step, value in trained.items() if step < metrics.step}
                validated = {step: value for step, value in validated.items() if step <= metrics.step}
            if values:
                trained[metrics.step] = values
            if validation:
                validated[metrics.step] = validated.get(metrics.step, {}) | validation
        steps = sorted(trained.keys() | validated.keys())
        return cls({"step": step, **trained.get(step, {}), **validated.get(step, {})} for step in steps)

    @property
    def columns(self) -> list[str]:
        """Names of all metrics, in order of first occurrence."""
        return list(dict.fromkeys(name for row in self.rows for name in row if name != "step"))

    def column(self, name: str) -> list[float | None]:
        """Return one metric by row; None where it was not reported."""
        return [row.get(name) for row in self.rows]

    def to_pandas(self) -> "pandas.DataFrame":
        """Return a data frame indexed by step. Raises NotPossible if pandas is not installed."""
        try:
            import pandas
        except ModuleNotFoundError:
            raise NotPossible("pandas is not installed: pip install pandas, or use .rows") from None
        frame = pandas.DataFrame(self.rows, columns=["step", *self.columns])
        return frame.set_index("step")

    @overload
    def __getitem__(self, index: int) -> dict[str, float]: ...
    @overload
    def __getitem__(self, index: slice) -> "MetricsTable": ...
    def __getitem__(self, index: int | slice) -> "dict[str, float] | MetricsTable":
        return MetricsTable(self.rows[index]) if isinstance(index, slice) else self.rows[index]

    def __iter__(self) -> Iterator[dict[str, float]]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        if not self.rows:
            return "MetricsTable(no steps yet)"
        return (
            f"MetricsTable({len(self.rows)} steps to {self.rows[-1]['step']:g}, {len(self.columns)} metrics)"
        )

    def _repr_html_(self) -> str:
        """Return the last rows with the most informative metrics as HTML."""
        names = [name for name in _PREFERRED_COLUMNS if name in self.columns]
        names += [name for name in self.columns if name not in names][: _MAX_HTML_COLUMNS - len(names)]
        head = "".join(f"<th>{html.escape(name)}</th>" for name in ("step", *names))
        rows = "".join(
            f"<tr>{''.join(f'<td>{_format_value(row.get(name))}</td>' for name in ('step', *names))}</tr>"
            for row in self.rows[-_MAX_HTML_ROWS:]
        )
        return (
            f"<div>{html.escape(repr(self))}</div><table><thead><tr>{head}</tr></thead>"
            f"<tbody>{rows}</tbody></table>"
        )


def _format_value(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if math.isfinite(value) else str(value)
