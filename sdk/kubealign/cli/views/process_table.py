"""Table of a job's processes. Pure."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from rich.table import Table
from rich.text import Text

from kubealign.cli.terminal import escape_control
from kubealign.cli.views.durations import format_age, format_duration
from kubealign.cli.views.job_table import new_table
from kubealign.client.records import ProcessRecord, ProcessState

_STATE_STYLES = {
    ProcessState.READY: "green",
    ProcessState.FINISHED: "green",
    ProcessState.RESTARTING: "red",
    ProcessState.FAILED: "bold red",
    ProcessState.STOPPED: "dim",
}
# Heartbeats are sent every five seconds.
_MAX_HEARTBEAT_AGE_SECONDS = 20.0


def process_table(processes: Sequence[ProcessRecord], now: datetime | None = None) -> Table:
    """Return one row per process; columns that are empty for every process are omitted."""
    at = now or datetime.now(UTC)
    columns: dict[str, Callable[[ProcessRecord], str | Text]] = {
        "PROCESS": lambda process: escape_control(process.name),
        "STATE": lambda process: Text(
            process.state.lower(), style=_STATE_STYLES.get(process.state, "yellow")
        ),
        "RESTARTS": lambda process: str(process.restarts or ""),
        "AGE": lambda process: "" if process.started is None else format_age(process.started, at),
        **_HEARTBEAT_COLUMNS,
        "LOCATION": lambda process: escape_control(process.where),
        "MESSAGE": lambda process: escape_control(_message(process)),
    }
    shown_columns = {
        heading: cell for heading, cell in columns.items() if any(str(cell(process)) for process in processes)
    }
    result = new_table(list(shown_columns), last_folds="MESSAGE" in shown_columns)
    for process in processes:
        result.add_row(*(cell(process) for cell in shown_columns.values()))
    return result


def _message(process: ProcessRecord) -> str:
    """Return problems first, then the present activity."""
    silent, says = process.silent_seconds, process.says
    notes = []
    if silent is not None and silent > _MAX_HEARTBEAT_AGE_SECONDS and process.state is ProcessState.READY:
        notes.append(f"no heartbeat for {format_duration(silent)}")
    if process.message:
        notes.append(process.message)
    if says.get("unreadable"):
        notes.append(str(says["unreadable"]))
    if says.get("quarantined") is True:
        notes.append("quarantined: its last refit failed")
    if says.get("last_error"):
        notes.append(f"last error: {says['last_error']}")
    if says.get("waiting_for"):
        notes.append(f"waits for {says['waiting_for']}")
    if says.get("computing"):
        notes.append(str(says["computing"]))
    return "; ".join(notes)


def _heartbeat_number(name: str, form: str = "{:,.0f}") -> Callable[[ProcessRecord], str]:
    """Return a cell function of a heartbeat field; empty if the field is absent or not a number."""

    def cell(process: ProcessRecord) -> str:
        value = process.says.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return ""
        return form.format(value)

    return cell


_HEARTBEAT_COLUMNS: dict[str, Callable[[ProcessRecord], str | Text]] = {
    "WEIGHTS": _heartbeat_number("weight_version"),
    "BUSY": _heartbeat_number("busy_share", "{:.0%}"),
    "TOKENS/S": _heartbeat_number("tokens_per_second"),
    "RUNNING": _heartbeat_number("running"),
    "WAITING": _heartbeat_number("waiting"),
}
