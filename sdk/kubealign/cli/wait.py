"""`kubealign wait`: until a job is where one wants it."""

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
    """Phases that can be waited for."""

    RUNNING = "Running"
    SUSPENDED = "Suspended"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


@asks_site
async def wait(
    here: Here,
    job: JobName,
    until: Annotated[Until, typer.Option("--for", help="The phase to wait for.")] = Until.SUCCEEDED,
    timeout: Annotated[
        str | None,
        typer.Option(
            "--timeout",
            metavar="SPAN",
            help="Such as 90s, 30m or 2h; then exit code 124.",
            show_default=False,
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing on the way.")] = False,
) -> None:
    """Wait until a job has succeeded, and tell each change of its phase.

    Exit code 0: it is there; 1: the job failed, or is gone; 124: the time was over.
    """
    seconds = None if timeout is None else _seconds(timeout)
    said = ""

    def tell(job: "AsyncJob") -> None:
        nonlocal said
        now = _told(job.record)
        if now != said and not quiet:
            typer.echo(now)
        said = now

    ref = await here.ref(job)
    await here.client.wait(ref.name, seconds, tell, until.value, ref.namespace)


def _told(record: "JobRecord") -> str:
    from kubealign.cli.terminal import safe

    message = f": {safe(record.status.message)}" if record.status.message else ""
    return f"{record.name}: {record.phase or 'not looked at yet'}{message}"


def _seconds(text: str) -> float:
    match = _SPAN.fullmatch(text.strip())
    if match is None:
        raise typer.BadParameter(
            f"{text!r} is no span of time, such as 90s, 30m or 2h", param_hint="--timeout"
        )
    return float(match["count"]) * _SECONDS[match["unit"]]
