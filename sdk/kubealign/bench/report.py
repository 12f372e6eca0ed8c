"""Timings of a benchmark run and their comparison with an earlier one.

Pure, except for `BenchmarkReport.read`.
"""

import hashlib
import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any

from kubealign import __version__
from kubealign.local.display.metric_lines import PHASE_TIMES
from kubealign.local.processes.cpu import available_cores

if TYPE_CHECKING:
    from rich.console import RenderableType

_TOKENS = "tokens_per_second"
_METRICS = (("whole step", "seconds/step"), *PHASE_TIMES)


class BenchmarkError(Exception):
    """The benchmark produced no measurement; the message gives the cause."""


@dataclass(frozen=True)
class MeasuredValue:
    """Mean and standard deviation over the measured steps, in seconds or tokens per second."""

    mean: float
    deviation: float


@dataclass(frozen=True)
class BenchmarkReport:
    """Measurements of one benchmark run.

    `job` is a digest of the spec without its number of steps; paths enter by their last component only.
    """

    release: str
    machine: str
    job: str
    steps: int
    figures: dict[str, MeasuredValue]

    @classmethod
    def from_metrics(
        cls, spec: Mapping[str, Any], lines: Sequence[Mapping[str, Any]], warmup: int
    ) -> "BenchmarkReport":
        """Build the report from metrics.jsonl lines. Raises BenchmarkError where steps are missing."""
        by_step = {line["step"]: line for line in lines if "seconds/step" in line}
        measured = [line for step, line in sorted(by_step.items()) if step > warmup]
        if len(measured) < 2:
            raise BenchmarkError(
                f"only {len(measured)} steps were measured: its data or epochs end too early"
            )
        names = [_TOKENS, *(name for _, name in _METRICS)]
        figures = {
            name: MeasuredValue(mean(values), stdev(values))
            for name in names
            if len(values := [float(line[name]) for line in measured if name in line]) == len(measured)
        }
        return cls(__version__, _machine(), _digest(spec), len(measured), figures)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as the JSON-compatible document that `read` accepts."""
        return asdict(self)

    @classmethod
    def read(cls, path: Path) -> "BenchmarkReport":
        """Read a report from a JSON file. Raises BenchmarkError for any other file."""
        try:
            document = json.loads(path.read_text())
            figures = {name: MeasuredValue(**figure) for name, figure in document.pop("figures").items()}
            return cls(**document, figures=figures)
        except OSError as error:
            raise BenchmarkError(f"{path} cannot be read: {error.strerror}") from error
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise BenchmarkError(f"{path} is no output of kubealign bench -o json ({error})") from error


def report_table(report: BenchmarkReport, earlier: BenchmarkReport | None) -> list["RenderableType"]:
    """Return the report as a table, with the earlier measurements and the change where there are any."""
    from rich.table import Table

    grid = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="dim")
    grid.add_column("")
    for heading in ("mean", "deviation", *(("earlier", "change") if earlier else ())):
        grid.add_column(heading, justify="right", no_wrap=True)
    for label, name in (("tokens a second", _TOKENS), *_METRICS):
        figure = report.figures.get(name)
        # A phase that the job does not have has a duration of zero.
        if figure is None or figure.mean == 0:
            continue
        before = None if earlier is None else earlier.figures.get(name)
        cells = [_format_value(name, figure.mean), _format_value(name, figure.deviation)]
        if earlier is not None:
            cells += (
                ["-", "-"]
                if before is None
                else [_format_value(name, before.mean), _format_change(figure, before)]
            )
        grid.add_row(label, *cells)
    return [f"{report.steps} steps; {report.machine}; kubealign {report.release}", grid]


def comparability_warnings(report: BenchmarkReport, earlier: BenchmarkReport | None) -> list[str]:
    """Return the reasons why two reports are not directly comparable."""
    if earlier is None:
        return []
    warnings = []
    if earlier.job != report.job:
        warnings.append("another job was measured then")
    if earlier.machine != report.machine:
        warnings.append(f"then it was {earlier.machine}")
    if earlier.steps != report.steps:
        warnings.append(f"then it was {earlier.steps} steps")
    return warnings


def _format_value(name: str, value: float) -> str:
    return f"{value:,.0f}" if name == _TOKENS else f"{value:.3f} s"


def _format_change(now: MeasuredValue, before: MeasuredValue) -> str:
    return "-" if before.mean == 0 else f"{100 * (now.mean / before.mean - 1):+.0f} %"


def _machine() -> str:
    system = f"{platform.system()} {platform.machine()}"
    return f"{system}, {available_cores()} cores, Python {platform.python_version()}"


def _digest(spec: Mapping[str, Any]) -> str:
    text = json.dumps(_without_folders(spec), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _without_folders(value: Any) -> Any:
    """Replace absolute paths by their last component: the location of a file does not change the job."""
    if isinstance(value, Mapping):
        return {name: _without_folders(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_without_folders(item) for item in value]
    return Path(value).name if isinstance(value, str) and value.startswith("/") else value
