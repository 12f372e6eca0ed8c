"""Jobs as a table. Pure: records in, something that rich can draw out."""

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
    """Columns side by side; the last one is wrapped where the window ends, the others never."""
    made = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="dim", show_edge=False)
    for number, heading in enumerate(headings):
        last = last_folds and number == len(headings) - 1
        made.add_column(heading, no_wrap=not last, overflow="fold" if last else "ignore")
    return made


def phase_text(phase: str) -> Text:
    return Text(phase or "-", style=_STYLES.get(phase, "dim"))


def number(value: float | None) -> str:
    """Three places, or three digits where it is small; `-` where there is none."""
    if value is None:
        return "-"
    return f"{value:.3f}" if value == 0 or 0.001 <= abs(value) < 1e6 else f"{value:.2e}"


def steps(record: JobRecord) -> str:
    status = record.status
    if status.step is None and status.max_steps is None:
        return "-"
    return f"{status.step or 0}/{status.max_steps or '?'}"


def duration(record: JobRecord, now: datetime) -> str:
    """From its start to its end, or until now."""
    begun = record.status.start_time
    return "-" if begun is None else span(((record.status.completion_time or now) - begun).total_seconds())


def jobs(
    records: Sequence[JobRecord],
    *,
    namespaces: bool = False,
    wide: bool = False,
    now: datetime | None = None,
) -> Table:
    """One row each. `namespaces`: with theirs; `wide`: with all that is worth a column."""
    columns = [*(_NAMESPACE if namespaces else ()), *_FIRST, *(_WIDE if wide else ()), *_LAST]
    made = table([heading for heading, _ in columns])
    at = now or datetime.now(UTC)
    for record in records:
        made.add_row(*(cell(record, at) for _, cell in columns))
    return made


def _rollout(record: JobRecord) -> str:
    ready = next((role.ready for role in record.status.roles or () if role.name == "rollout"), None)
    wanted = record.status.rollout_replicas
    if wanted is None:
        return "-"
    return str(wanted) if ready is None else f"{ready}/{wanted}"


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
