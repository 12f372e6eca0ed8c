"""Table of an evaluation's metrics: a row for each model and metric, with its confidence interval."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

_LOW, _HIGH = "/ci_low", "/ci_high"


def evaluation_table(models: Sequence[Mapping[str, Any]]) -> Table:
    """Return the table.

    Args:
        models: Entries of the result of an evaluation: step, and metrics by name.
    """
    table = Table(box=None, pad_edge=False)
    for column in ("STEP", "METRIC"):
        table.add_column(column)
    for column in ("VALUE", "LOW", "HIGH"):
        table.add_column(column, justify="right")
    for entry in models:
        metrics: Mapping[str, float] = entry["metrics"]
        for name, value in metrics.items():
            if not name.endswith((_LOW, _HIGH)):
                bounds = (metrics.get(name + suffix) for suffix in (_LOW, _HIGH))
                table.add_row(str(entry["step"]), name, f"{value:.4g}", *map(_format, bounds))
    return table


def _format(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"
