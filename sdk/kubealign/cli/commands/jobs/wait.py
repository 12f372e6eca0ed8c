"""`kubealign wait`: waits until a job reaches a phase."""

import re
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from kubealign.cli.command import CommandContext, backend_command
from kubealign.cli.options import JobName

if TYPE_CHECKING:
    from kubealign.client.job import AsyncJob
    from kubealign.client.records import JobRecord

_DURATION = re.compile(r"(?P<count>[0-9]+(?:\.[0-9]+)?)(?P<unit>[smhd]?)")
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}


class WaitPhase(StrEnum):
    """Phases that can be awaited."""

    RUNNING = "Running"
    SUSPENDED = "Suspended"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


@backend_command
async def wait(
    ctx: CommandContext,
    job: JobName,
    until: Annotated[WaitPhase, typer.Option("--for", help="Phase to wait for.")] = WaitPhase.SUCCEEDED,
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
    seconds = None if timeout is None else _parse_seconds(timeout)
    last_line = ""

    def print_change(job: "AsyncJob") -> None:
        nonlocal last_line
        current_line = _status_line(job.record)
        if current_line != last_line and not quiet:
            typer.echo(current_line)
        last_line = current_line

    ref = await ctx.ref(job)
    await ctx.client.wait(ref.name, seconds, print_change, until.value, ref.namespace)


def _status_line(record: "JobRecord") -> str:
    from kubealign.cli.terminal import escape_control

    message = f": {escape_control(record.status.message)}" if record.status.message else ""
    return f"{record.name}: {record.phase or 'not reconciled yet'}{message}"


def _parse_seconds(text: str) -> float:
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise typer.BadParameter(
            f"{text!r} is not a duration, such as 90s, 30m or 2h", param_hint="--timeout"
        )
    return float(match["count"]) * _SECONDS[match["unit"]]
