"""Table of events. Pure."""

from collections.abc import Sequence
from datetime import datetime

from rich.table import Table
from rich.text import Text

from kubealign.cli.terminal import escape_control
from kubealign.cli.views.durations import format_age
from kubealign.cli.views.job_table import new_table
from kubealign.client.records import JobEvent


def event_table(events: Sequence[JobEvent], now: datetime | None = None) -> Table:
    rows = new_table(["AGE", "TYPE", "REASON", "MESSAGE"])
    for event in events:
        age_text = (
            f"{format_age(event.time, now)} (x{event.count})"
            if event.count > 1
            else format_age(event.time, now)
        )
        warning = event.type == "Warning"
        rows.add_row(
            age_text,
            Text(event.type, style="yellow" if warning else "dim"),
            escape_control(event.reason),
            escape_control(event.message.strip()),
        )
    return rows
