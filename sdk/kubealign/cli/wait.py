"""`kubealign wait`: waits until a job reaches a phase."""

import re
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from kubealign.cli.command import Here, asks_site
from kubealign.cli.options import JobName

if TYPE_CHECKING:
    from kubealign.client.async_job import AsyncJob
    from kubealign.client.records import JobRecord

_SPAN = re.compile(r"(?P<count>[0-9]+(?:\.[0-9]+)?)(?P<unit>[smhd]?)")
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}


class Until(StrEnum):
    """Phases that can be awaited."""

    RUNNING = "Running"
    SUSPENDED = "Suspended"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


@asks_site
async def wait(
    here: Here,
    job: JobName,
    until: Annotated[Until, typer.Option("--for", help="Phase to wait for.")] = Until.SUCCEEDED,
    timeout: Annotated[
        str | None,
        typer.Option(
            "--timeout",
            metavar="SPAN",
            help="Timeout, such as 90s, 30m or 2h; exit code 124 when it expires.",
            show_default=False,
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print no phase changes.")] = False,
) -> None:
    """Wait until a job has succeeded, and print each change of its phase.

    Exit code 0: the phase was reached; 1: the job failed, or was deleted; 124: the timeout expired.
    """
    seconds = None if timeout is None else _seconds(timeout)
    last_line = ""

    def print_change(job: "AsyncJob") -> None:
        nonlocal last_line
        current_line = _told(job.record)
        if current_line != last_line and not quiet:
            typer.echo(current_line)
        last_line = current_line

    ref = await here.ref(job)
    await here.client.wait(ref.name, seconds, print_change, until.value, ref.namespace)


def _told(record: "JobRecord") -> str:
    from kubealign.cli.terminal import safe

    message = f": {safe(record.status.message)}" if record.status.message else ""
    return f"{record.name}: {record.phase or 'not reconciled yet'}{message}"


def _seconds(text: str) -> float:
    match = _SPAN.fullmatch(text.strip())
    if match is None:
        raise typer.BadParameter(
            f"{text!r} is not a duration, such as 90s, 30m or 2h", param_hint="--timeout"
        )
    return float(match["count"]) * _SECONDS[match["unit"]]
