"""Table of jobs, as a rich renderable. Pure."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TypeAlias

from rich.table import Table
from rich.text import Text

from kubealign.cli.terminal import escape_control
from kubealign.cli.views.durations import format_age, format_duration
from kubealign.client.records import JobRecord

_PHASE_STYLES = {
    "Running": "green",
    "Succeeded": "bold green",
    "Failed": "bold red",
    "Pending": "yellow",
    "Starting": "yellow",
    "Suspending": "magenta",
    "Suspended": "magenta",
}
Column: TypeAlias = tuple[str, Callable[[JobRecord, datetime], str | Text]]


def new_table(headings: Sequence[str], *, last_folds: bool = True) -> Table:
    """Create a table; only the last column is wrapped at the width of the window."""
    result = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="dim", show_edge=False)
    for number, heading in enumerate(headings):
        last = last_folds and number == len(headings) - 1
        result.add_column(heading, no_wrap=not last, overflow="fold" if last else "ignore")
    return result


def phase_text(phase: str) -> Text:
    return Text(phase or "-", style=_PHASE_STYLES.get(phase, "dim"))


def format_number(value: float | None) -> str:
    """Format with three decimals, or in scientific notation if small; `-` for None."""
    if value is None:
        return "-"
    return f"{value:.3f}" if value == 0 or 0.001 <= abs(value) < 1e6 else f"{value:.2e}"


def format_steps(record: JobRecord) -> str:
    status = record.status
    if status.step is None and status.max_steps is None:
        return "-"
    return f"{status.step or 0}/{status.max_steps or '?'}"


def format_run_duration(record: JobRecord, now: datetime) -> str:
    """Format the time from the job's start to its end, or until now."""
    started = record.status.start_time
    return (
        "-"
        if started is None
        else format_duration(((record.status.completion_time or now) - started).total_seconds())
    )


def jobs_table(
    records: Sequence[JobRecord],
    *,
    namespaces: bool = False,
    wide: bool = False,
    now: datetime | None = None,
) -> Table:
    """Return one row per job. `namespaces` and `wide` add columns."""
    columns = [
        *(_NAMESPACE_COLUMN if namespaces else ()),
        *_FIRST_COLUMNS,
        *(_WIDE_COLUMNS if wide else ()),
        *_LAST_COLUMNS,
    ]
    result = new_table([heading for heading, _ in columns])
    at = now or datetime.now(UTC)
    for record in records:
        result.add_row(*(cell(record, at) for _, cell in columns))
    return result


def _rollout_replicas(record: JobRecord) -> str:
    ready = next((role.ready for role in record.status.roles or () if role.name == "rollout"), None)
    replicas = record.status.rollout_replicas
    if replicas is None:
        return "-"
    return str(replicas) if ready is None else f"{ready}/{replicas}"


_NAMESPACE_COLUMN: tuple[Column, ...] = (("NAMESPACE", lambda record, now: record.namespace),)
_FIRST_COLUMNS: tuple[Column, ...] = (
    ("NAME", lambda record, now: record.name),
    (
        "PHASE",
        lambda record, now: phase_text("Deleting" if record.is_deleting else str(record.phase or "")),
    ),
    ("STEP", lambda record, now: format_steps(record)),
    ("REWARD", lambda record, now: format_number(record.status.reward)),
    ("KL", lambda record, now: format_number(record.status.kl)),
)
_WIDE_COLUMNS: tuple[Column, ...] = (
    ("ALGORITHM", lambda record, now: record.algorithm),
    ("WEIGHTS", lambda record, now: _format_int(record.status.weight_version)),
    ("ROLLOUT", lambda record, now: _rollout_replicas(record)),
    ("RESTARTS", lambda record, now: _format_int(record.status.restarts)),
    ("DURATION", format_run_duration),
)
_LAST_COLUMNS: tuple[Column, ...] = (
    ("AGE", lambda record, now: format_age(record.created, now)),
    ("MESSAGE", lambda record, now: escape_control(" ".join((record.status.message or "").split()))),
)


def _format_int(value: int | None) -> str:
    return "-" if value is None else str(value)
