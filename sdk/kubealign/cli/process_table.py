"""A job's processes as a table. Pure."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from rich.table import Table
from rich.text import Text

from kubealign.cli.ages import age, span
from kubealign.cli.job_table import table
from kubealign.cli.terminal import safe
from kubealign.client.records import ProcessRecord, ProcessState

_STYLES = {
    ProcessState.READY: "green",
    ProcessState.FINISHED: "green",
    ProcessState.RESTARTING: "red",
    ProcessState.FAILED: "bold red",
    ProcessState.STOPPED: "dim",
}
# A process speaks every five seconds.
_SILENT_SECONDS = 20.0


def process_rows(processes: Sequence[ProcessRecord], now: datetime | None = None) -> Table:
    """One row each; what is known of none of them has no column."""
    at = now or datetime.now(UTC)
    columns: dict[str, Callable[[ProcessRecord], str | Text]] = {
        "PROCESS": lambda process: safe(process.name),
        "STATE": lambda process: Text(process.state.lower(), style=_STYLES.get(process.state, "yellow")),
        "RESTARTS": lambda process: str(process.restarts or ""),
        "AGE": lambda process: "" if process.started is None else age(process.started, at),
        **_SAID,
        "WHERE": lambda process: safe(process.where),
        "MESSAGE": lambda process: safe(_message(process)),
    }
    held = {
        heading: cell for heading, cell in columns.items() if any(str(cell(process)) for process in processes)
    }
    made = table(list(held), last_folds="MESSAGE" in held)
    for process in processes:
        made.add_row(*(cell(process) for cell in held.values()))
    return made


def _message(process: ProcessRecord) -> str:
    """What there is to worry about first, then what it does."""
    silent, says = process.silent_seconds, process.says
    told = []
    if silent is not None and silent > _SILENT_SECONDS and process.state is ProcessState.READY:
        told.append(f"silent for {span(silent)}")
    if process.message:
        told.append(process.message)
    if says.get("quarantined") is True:
        told.append("quarantined: its last refit failed")
    if says.get("last_error"):
        told.append(f"last error: {says['last_error']}")
    if says.get("waiting_for"):
        told.append(f"waits for {says['waiting_for']}")
    if says.get("computing"):
        told.append(str(says["computing"]))
    return "; ".join(told)


def _number(name: str, form: str = "{:,.0f}") -> Callable[[ProcessRecord], str]:
    """What it says of itself under this name; empty where it says nothing, or no number."""

    def cell(process: ProcessRecord) -> str:
        held = process.says.get(name)
        if isinstance(held, bool) or not isinstance(held, int | float):
            return ""
        return form.format(held)

    return cell


_SAID: dict[str, Callable[[ProcessRecord], str | Text]] = {
    "WEIGHTS": _number("weight_version"),
    "BUSY": _number("busy_share", "{:.0%}"),
    "TOKENS/S": _number("tokens_per_second"),
    "RUNNING": _number("running"),
    "WAITING": _number("waiting"),
}
