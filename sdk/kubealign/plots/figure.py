"""Draws curves with matplotlib."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kubealign.plots.curves import Axis, Curve, PlotError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Formats by the suffix of the file.
FORMATS = ("png", "svg", "pdf")
_PANEL_INCHES = (5.2, 3.6)
_DPI = 150
#: Colours that the colour-blind can tell apart (Okabe and Ito), the first ones with the most contrast.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
_AXIS_LABELS = {Axis.STEP: "step", Axis.SECONDS: "training time (s)"}


@dataclass(frozen=True)
class Panel:
    """Curves of one metric over one axis."""

    metric: str
    axis: Axis
    curves: Sequence[Curve]


def check_output(path: Path) -> None:
    """Raise PlotError for a file whose format or folder does not exist."""
    if path.suffix.removeprefix(".") not in FORMATS:
        allowed = ", ".join(f".{name}" for name in FORMATS)
        raise PlotError(f"--output {path}: the suffix is {path.suffix or 'missing'}; allowed: {allowed}")
    if not path.absolute().parent.is_dir():
        raise PlotError(f"--output {path}: {path.absolute().parent} is not a folder")


def draw(rows: Sequence[Sequence[Panel]], title: str | None, path: Path) -> None:
    """Write a figure with one panel per entry; the rows share their metric, the columns their axis.

    A group of several runs is a line through the means with a band from the least to the largest value.
    The same curves give the same bytes.

    Raises PlotError where matplotlib is not installed, and for an output that cannot be written.
    """
    check_output(path)
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise PlotError(f"{error.name} is not installed: pip install 'kubealign[plot]'") from error
    width, height = _PANEL_INCHES
    with mpl.rc_context({"svg.hashsalt": "kubealign", "svg.fonttype": "none"}):
        figure = Figure(figsize=(width * len(rows[0]), height * len(rows)), dpi=_DPI, layout="constrained")
        grid = figure.subplots(len(rows), len(rows[0]), squeeze=False)
        for row, panels in enumerate(rows):
            for column, panel in enumerate(panels):
                _draw_panel(grid[row][column], panel)
        if title:
            figure.suptitle(title)
        metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {"Software": None}}
        kind = path.suffix.removeprefix(".")
        try:
            figure.savefig(path, format=kind, metadata=metadata[kind])
        except OSError as error:
            raise PlotError(f"--output {path} cannot be written: {error}") from error


def _draw_panel(axes: "Axes", panel: Panel) -> None:
    for index, curve in enumerate(panel.curves):
        colour = _COLOURS[index % len(_COLOURS)]
        style = "-" if index < len(_COLOURS) else "--"
        label = curve.label if curve.runs == 1 else f"{curve.label} ({curve.runs} runs)"
        axes.plot(curve.xs, curve.means, style, color=colour, label=label, marker=".", linewidth=1.6)
        if curve.runs > 1:
            axes.fill_between(curve.xs, curve.lows, curve.highs, color=colour, alpha=0.18, linewidth=0)
    axes.set_xlabel(_AXIS_LABELS[panel.axis])
    axes.set_ylabel(panel.metric)
    axes.grid(alpha=0.25)
    axes.legend(frameon=False)
