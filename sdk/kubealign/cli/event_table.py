"""Table of events. Pure."""

from collections.abc import Sequence
from datetime import datetime

from rich.table import Table
from rich.text import Text

from kubealign.cli.ages import age
from kubealign.cli.job_table import table
from kubealign.cli.terminal import safe
from kubealign.client.records import JobEvent


def event_rows(events: Sequence[JobEvent], now: datetime | None = None) -> Table:
    rows = table(["AGE", "TYPE", "REASON", "MESSAGE"])
    for event in events:
        age_text = f"{age(event.time, now)} (x{event.count})" if event.count > 1 else age(event.time, now)
        warning = event.type == "Warning"
        rows.add_row(
            age_text,
            Text(event.type, style="yellow" if warning else "dim"),
            safe(event.reason),
            safe(event.message.strip()),
        )
    return rows
