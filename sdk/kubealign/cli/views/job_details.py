"""Details page of one job, as rich renderables. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from kubealign.cli.output import format_yaml
from kubealign.cli.terminal import escape_control
from kubealign.cli.views.durations import format_age
from kubealign.cli.views.event_table import event_table
from kubealign.cli.views.job_table import (
    format_number,
    format_run_duration,
    format_steps,
    new_table,
    phase_text,
)
from kubealign.cli.views.process_table import process_table
from kubealign.client.records import JobEvent, JobRecord, ProcessRecord
from kubealign.local.checkpoints import CheckpointSummary
from kubealign.planning.byte_units import format_bytes
from kubealign.spec.status import Condition

_MAX_EVENTS = 15
_INDENT = (0, 0, 0, 2)
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


def job_details(
    record: JobRecord,
    processes: Sequence[ProcessRecord],
    events: Sequence[JobEvent],
    now: datetime | None = None,
    checkpoints: Sequence[CheckpointSummary] = (),
) -> list[RenderableType]:
    """Return the sections from top to bottom; empty ones are omitted.

    Args:
        checkpoints: Checkpoints of a run on this machine.
    """
    at = now or datetime.now(UTC)
    parts: list[RenderableType] = [_header(record, at)]
    if processes:
        parts += [_heading("Processes"), Padding(process_table(processes, at), _INDENT)]
    if checkpoints:
        parts += [_heading("Checkpoints"), Padding(_checkpoints(checkpoints, at), _INDENT)]
    if record.status.conditions:
        parts += [_heading("Conditions"), Padding(_conditions(record.status.conditions, at), _INDENT)]
    if events:
        omitted = len(events) - _MAX_EVENTS
        title = f"Events (the last {_MAX_EVENTS} of {len(events)})" if omitted > 0 else "Events"
        parts += [_heading(title), Padding(event_table(events[-_MAX_EVENTS:], at), _INDENT)]
    spec = format_yaml(record.resource.get("spec") or {})
    return [*parts, _heading("Spec"), Padding(Text(spec, style="default"), _INDENT)]


def _heading(text: str) -> Text:
    return Text(f"\n{text}", style="bold")


def _header(record: JobRecord, now: datetime) -> Table:
    status = record.status
    started, ended = status.start_time, status.completion_time
    rows: list[tuple[str, str | Text | None]] = [
        ("Name", record.name),
        ("Namespace", record.namespace),
        ("Labels", _key_values(record.labels)),
        ("Annotations", _key_values(record.metadata.get("annotations") or {})),
        ("Algorithm", record.algorithm),
        ("Starts from", _origin(record)),
        ("Created", _timestamp(record.created, now)),
        ("Started", _timestamp(started, now)),
        ("Ended", _timestamp(ended, now)),
        ("Duration", format_run_duration(record, now) if started else None),
        ("Phase", phase_text("Deleting" if record.is_deleting else str(record.phase or ""))),
        ("Message", escape_control(status.message or "")),
        ("Step", format_steps(record)),
        ("Reward", None if status.reward is None else format_number(status.reward)),
        ("KL", None if status.kl is None else f"{format_number(status.kl)} nats per token"),
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


def _key_values(pairs: Mapping[str, Any]) -> str:
    return "\n".join(
        escape_control(f"{name}={value}") for name, value in pairs.items() if name != _LAST_APPLIED
    )


def _timestamp(time: datetime | None, now: datetime) -> str | None:
    if time is None:
        return None
    return f"{time.astimezone().isoformat(sep=' ', timespec='seconds')} ({format_age(time, now)} ago)"


def _origin(record: JobRecord) -> str | None:
    """Return the checkpoint of another run with which the job starts; None: its initial weights."""
    checkpoint = (record.resource.get("spec") or {}).get("checkpoint") or {}
    source = checkpoint.get("from")
    if not source:
        return None
    job, volume = source.get("job") or {}, source.get("volume") or {}
    run = job.get("name") or source.get("path") or f"{volume.get('path')} in claim {volume.get('claimName')}"
    step = source.get("step")
    return escape_control(f"{run}, {'its newest checkpoint' if step is None else f'step {step}'}")


def _result(record: JobRecord) -> str | None:
    location = record.status.result
    if location is None:
        return None
    return f"{location.path} in claim {location.claim_name}" if location.claim_name else location.path


def _checkpoints(checkpoints: Sequence[CheckpointSummary], now: datetime) -> Table:
    rows = new_table(["STEP", "SIZE", "AGE", "PINNED"])
    for checkpoint in checkpoints:
        rows.add_row(
            str(checkpoint.step),
            format_bytes(checkpoint.size_bytes),
            format_age(checkpoint.created, now),
            "yes" if checkpoint.is_pinned else "",
        )
    return rows


def _conditions(conditions: Iterable[Condition], now: datetime) -> Table:
    rows = new_table(["TYPE", "STATUS", "SINCE", "REASON", "MESSAGE"])
    for condition in conditions:
        rows.add_row(
            escape_control(condition.type),
            condition.status.value,
            format_age(condition.last_transition_time, now),
            escape_control(condition.reason),
            escape_control(condition.message),
        )
    return rows
