"""The figures of a job as a table: a row a step."""

import html
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, overload

from kubealign.client.errors import NotPossible
from kubealign.read_model import StepMetrics

if TYPE_CHECKING:
    import pandas

_VALIDATION = "val/"
_SHOWN_ROWS = 10
_SHOWN_COLUMNS = 8
_FIRST = ("reward/mean", "kl/reference", "sft/loss", "rm/loss", "policy/loss", "response/length")


class MetricsTable(Sequence[dict[str, float]]):
    """Each row is a dict: `step`, and what was measured at it (docs/metrics.md), validation included.

    A job that was rolled back has done some steps again: of those the table has what was reported last."""

    def __init__(self, rows: Iterable[Mapping[str, float]]) -> None:
        self.rows: list[dict[str, float]] = [dict(row) for row in rows]

    @classmethod
    def of(cls, reported: Iterable[StepMetrics]) -> "MetricsTable":
        """The table of all that was reported, in the order in which it was."""
        trained: dict[int, dict[str, float]] = {}
        validated: dict[int, dict[str, float]] = {}
        fence = 0
        for metrics in reported:
            figures = {name: held for name, held in metrics.values.items() if name.startswith(_VALIDATION)}
            values = {name: held for name, held in metrics.values.items() if name not in figures}
            if metrics.fence < fence:
                # Of a driver that another has replaced.
                continue
            if metrics.fence > fence and values:
                # A driver that goes on from a commit takes back what came after it.
                fence = metrics.fence
                trained = {step: held for step, held in trained.items() if step < metrics.step}
                validated = {step: held for step, held in validated.items() if step <= metrics.step}
            if values:
                trained[metrics.step] = values
            if figures:
                validated[metrics.step] = validated.get(metrics.step, {}) | figures
        steps = sorted(trained.keys() | validated.keys())
        return cls({"step": step, **trained.get(step, {}), **validated.get(step, {})} for step in steps)

    @property
    def columns(self) -> list[str]:
        """The names of all figures, in the order in which they first come."""
        return list(dict.fromkeys(name for row in self.rows for name in row if name != "step"))

    def column(self, name: str) -> list[float | None]:
        """One figure by row; None where it was not measured."""
        return [row.get(name) for row in self.rows]

    def to_pandas(self) -> "pandas.DataFrame":
        """With the step as index. Raises NotPossible where pandas is not installed."""
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
            f"MetricsTable({len(self.rows)} steps to {self.rows[-1]['step']:g}, {len(self.columns)} figures)"
        )

    def _repr_html_(self) -> str:
        """The last rows, with the figures that say most."""
        names = [name for name in _FIRST if name in self.columns]
        names += [name for name in self.columns if name not in names][: _SHOWN_COLUMNS - len(names)]
        head = "".join(f"<th>{html.escape(name)}</th>" for name in ("step", *names))
        rows = "".join(
            f"<tr>{''.join(f'<td>{_shown(row.get(name))}</td>' for name in ('step', *names))}</tr>"
            for row in self.rows[-_SHOWN_ROWS:]
        )
        return (
            f"<div>{html.escape(repr(self))}</div><table><thead><tr>{head}</tr></thead>"
            f"<tbody>{rows}</tbody></table>"
        )


def _shown(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if math.isfinite(value) else str(value)
