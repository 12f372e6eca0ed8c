"""Details page of one job, as rich renderables. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from kubealign.cli.ages import age
from kubealign.cli.event_table import event_rows
from kubealign.cli.job_table import duration, number, phase_text, steps, table
from kubealign.cli.printing import as_yaml
from kubealign.cli.process_table import process_rows
from kubealign.cli.terminal import safe
from kubealign.client.records import JobEvent, JobRecord, ProcessRecord
from kubealign.spec.status import Condition

_MOST_EVENTS = 15
_INDENT = (0, 0, 0, 2)
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


def description(
    record: JobRecord,
    processes: Sequence[ProcessRecord],
    events: Sequence[JobEvent],
    now: datetime | None = None,
) -> list[RenderableType]:
    """Return the sections from top to bottom; empty ones are omitted."""
    at = now or datetime.now(UTC)
    parts: list[RenderableType] = [_head(record, at)]
    if processes:
        parts += [_heading("Processes"), Padding(process_rows(processes, at), _INDENT)]
    if record.status.conditions:
        parts += [_heading("Conditions"), Padding(_conditions(record.status.conditions, at), _INDENT)]
    if events:
        omitted = len(events) - _MOST_EVENTS
        title = f"Events (the last {_MOST_EVENTS} of {len(events)})" if omitted > 0 else "Events"
        parts += [_heading(title), Padding(event_rows(events[-_MOST_EVENTS:], at), _INDENT)]
    spec = as_yaml(record.resource.get("spec") or {})
    return [*parts, _heading("Spec"), Padding(Text(spec, style="default"), _INDENT)]


def _heading(text: str) -> Text:
    return Text(f"\n{text}", style="bold")


def _head(record: JobRecord, now: datetime) -> Table:
    status = record.status
    started, ended = status.start_time, status.completion_time
    rows: list[tuple[str, str | Text | None]] = [
        ("Name", record.name),
        ("Namespace", record.namespace),
        ("Labels", _pairs(record.labels)),
        ("Annotations", _pairs(record.metadata.get("annotations") or {})),
        ("Algorithm", record.algorithm),
        ("Created", _moment(record.created, now)),
        ("Started", _moment(started, now)),
        ("Ended", _moment(ended, now)),
        ("Duration", duration(record, now) if started else None),
        ("Phase", phase_text("Deleting" if record.deleting else str(record.phase or ""))),
        ("Message", safe(status.message or "")),
        ("Step", steps(record)),
        ("Reward", None if status.reward is None else number(status.reward)),
        ("KL", None if status.kl is None else f"{number(status.kl)} nats per token"),
        ("Weights", None if status.weight_version is None else f"version {status.weight_version}"),
        ("Restarts", str(status.restarts) if status.restarts else None),
        ("Result", _result(record)),
    ]
    fields = Table.grid(padding=(0, 3, 0, 0))
    fields.add_column(style="dim", no_wrap=True)
    fields.add_column(overflow="fold")
    for heading, value in rows:
        if value:
            fields.add_row(heading, value)
    return fields


def _pairs(pairs: Mapping[str, Any]) -> str:
    return "\n".join(safe(f"{name}={value}") for name, value in pairs.items() if name != _LAST_APPLIED)


def _moment(time: datetime | None, now: datetime) -> str | None:
    if time is None:
        return None
    return f"{time.astimezone().isoformat(sep=' ', timespec='seconds')} ({age(time, now)} ago)"


def _result(record: JobRecord) -> str | None:
    location = record.status.result
    if location is None:
        return None
    return f"{location.path} in claim {location.claim_name}" if location.claim_name else location.path


def _conditions(conditions: Iterable[Condition], now: datetime) -> Table:
    rows = table(["TYPE", "STATUS", "SINCE", "REASON", "MESSAGE"])
    for condition in conditions:
        rows.add_row(
            safe(condition.type),
            condition.status.value,
            age(condition.last_transition_time, now),
            safe(condition.reason),
            safe(condition.message),
        )
    return rows
