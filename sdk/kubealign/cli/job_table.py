"""Table of jobs, as a rich renderable. Pure."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TypeAlias

from rich.table import Table
from rich.text import Text

from kubealign.cli.ages import age, span
from kubealign.cli.terminal import safe
from kubealign.client.records import JobRecord

_STYLES = {
    "Running": "green",
    "Succeeded": "bold green",
    "Failed": "bold red",
    "Pending": "yellow",
    "Starting": "yellow",
    "Suspending": "magenta",
    "Suspended": "magenta",
}
Column: TypeAlias = tuple[str, Callable[[JobRecord, datetime], str | Text]]


def table(headings: Sequence[str], *, last_folds: bool = True) -> Table:
    """Create a table; only the last column is wrapped at the width of the window."""
    result = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="dim", show_edge=False)
    for number, heading in enumerate(headings):
        last = last_folds and number == len(headings) - 1
        result.add_column(heading, no_wrap=not last, overflow="fold" if last else "ignore")
    return result


def phase_text(phase: str) -> Text:
    return Text(phase or "-", style=_STYLES.get(phase, "dim"))


def number(value: float | None) -> str:
    """Format with three decimals, or in scientific notation if small; `-` for None."""
    if value is None:
        return "-"
    return f"{value:.3f}" if value == 0 or 0.001 <= abs(value) < 1e6 else f"{value:.2e}"


def steps(record: JobRecord) -> str:
    status = record.status
    if status.step is None and status.max_steps is None:
        return "-"
    return f"{status.step or 0}/{status.max_steps or '?'}"


def duration(record: JobRecord, now: datetime) -> str:
    """Format the time from the job's start to its end, or until now."""
    started = record.status.start_time
    return "-" if started is None else span(((record.status.completion_time or now) - started).total_seconds())


def jobs(
    records: Sequence[JobRecord],
    *,
    namespaces: bool = False,
    wide: bool = False,
    now: datetime | None = None,
) -> Table:
    """Return one row per job. `namespaces` and `wide` add columns."""
    columns = [*(_NAMESPACE if namespaces else ()), *_FIRST, *(_WIDE if wide else ()), *_LAST]
    result = table([heading for heading, _ in columns])
    at = now or datetime.now(UTC)
    for record in records:
        result.add_row(*(cell(record, at) for _, cell in columns))
    return result


def _rollout(record: JobRecord) -> str:
    ready = next((role.ready for role in record.status.roles or () if role.name == "rollout"), None)
    replicas = record.status.rollout_replicas
    if replicas is None:
        return "-"
    return str(replicas) if ready is None else f"{ready}/{replicas}"


_NAMESPACE: tuple[Column, ...] = (("NAMESPACE", lambda record, now: record.namespace),)
_FIRST: tuple[Column, ...] = (
    ("NAME", lambda record, now: record.name),
    (
        "PHASE",
        lambda record, now: phase_text("Deleting" if record.deleting else str(record.phase or "")),
    ),
    ("STEP", lambda record, now: steps(record)),
    ("REWARD", lambda record, now: number(record.status.reward)),
    ("KL", lambda record, now: number(record.status.kl)),
)
_WIDE: tuple[Column, ...] = (
    ("ALGORITHM", lambda record, now: record.algorithm),
    ("WEIGHTS", lambda record, now: _whole(record.status.weight_version)),
    ("ROLLOUT", lambda record, now: _rollout(record)),
    ("RESTARTS", lambda record, now: _whole(record.status.restarts)),
    ("DURATION", duration),
)
_LAST: tuple[Column, ...] = (
    ("AGE", lambda record, now: age(record.created, now)),
    ("MESSAGE", lambda record, now: safe(" ".join((record.status.message or "").split()))),
)


def _whole(value: int | None) -> str:
    return "-" if value is None else str(value)
