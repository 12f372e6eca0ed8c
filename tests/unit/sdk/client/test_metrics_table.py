"""Metrics table of a job with validation and a rollback."""

import math
import sys

import pytest

from kubealign.client.errors import NotPossible
from kubealign.client.metrics_table import MetricsTable
from kubealign.read_model import StepMetrics


def reported(*entries: tuple[int, int, dict[str, float]]) -> MetricsTable:
    return MetricsTable.from_steps(
        StepMetrics(f"{index}-0", step, fence, values) for index, (step, fence, values) in enumerate(entries)
    )


def test_validation_is_in_the_row_of_its_step() -> None:
    table = reported(
        (0, 1, {"val/loss": 3.0}), (1, 1, {"loss": 2.0}), (2, 1, {"loss": 1.0}), (2, 1, {"val/loss": 0.5})
    )
    assert table.rows == [
        {"step": 0, "val/loss": 3.0},
        {"step": 1, "loss": 2.0},
        {"step": 2, "loss": 1.0, "val/loss": 0.5},
    ]
    assert table.columns == ["val/loss", "loss"]
    assert table.column("loss") == [None, 2.0, 1.0]
    assert len(table[1:]) == 2 and table[-1]["step"] == 2


def test_rollback_discards_steps_after_the_checkpoint() -> None:
    table = reported(
        (1, 1, {"loss": 1.0}),
        (2, 1, {"loss": 2.0, "only": 1.0}),
        (3, 1, {"loss": 3.0}),
        (3, 1, {"val/loss": 9.0}),
        (2, 2, {"loss": 20.0}),
        # A late report of the replaced driver.
        (4, 1, {"loss": 4.0}),
    )
    assert table.rows == [{"step": 1, "loss": 1.0}, {"step": 2, "loss": 20.0}]


def test_to_pandas_names_the_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    table = reported((1, 1, {"loss": 1.0}), (2, 1, {"val/x": 2.0}))
    frame = table.to_pandas()
    assert frame.index.tolist() == [1, 2] and frame.index.name == "step"
    assert frame["loss"].tolist()[0] == 1.0 and math.isnan(frame["loss"].tolist()[1])
    assert reported().to_pandas().empty
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(NotPossible, match="pip install pandas"):
        table.to_pandas()


def test_html_is_escaped() -> None:
    table = reported((1, 1, {"<script>": math.nan, "reward/mean": 0.123456}))
    assert repr(table) == "MetricsTable(1 steps to 1, 2 metrics)"
    shown = table._repr_html_()
    assert "<script>" not in shown and "&lt;script&gt;" in shown and "0.1235" in shown and "nan" in shown
    assert "no steps yet" in repr(reported())
