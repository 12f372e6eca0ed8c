"""`kubealign doctor`: what is missing, and the remedy."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from kubealign.cli.exits import ExitCode
from kubealign.cli.options import Context, Kubeconfig, Local, Namespace, NoColor, RunsDir
from kubealign.cli.where import Where

if TYPE_CHECKING:
    from kubealign.doctor.finding import Finding

_CALL_SECONDS = 10.0
_STYLES = {"ok": "green", "warning": "yellow", "missing": "bold red"}


def doctor(
    local: Local = False,
    runs_dir: RunsDir = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    namespace: Namespace = None,
    no_color: NoColor = False,
) -> None:
    """Look at what jobs need, on this machine and on the cluster, and say what is missing.

    --local: this machine alone; --context or --kubeconfig: the cluster alone. Exit code 1 when something is
    missing without which jobs do not run.
    """
    from kubealign.cli.terminal import without_color

    where = Where(local, runs_dir, kubeconfig, context, namespace)
    # Both at once is an error, as everywhere.
    here = where.folder
    cluster_alone = kubeconfig is not None or context is not None
    with without_color(no_color):
        found = []
        if not cluster_alone:
            found += _machine(here or Path("runs"))
        if not local and runs_dir is None:
            found += asyncio.run(_cluster(where, asked=cluster_alone))
    raise typer.Exit(ExitCode.FAILED if any(item.health == "missing" for item in found) else ExitCode.DONE)


def _machine(runs_dir: Path) -> list["Finding"]:
    from kubealign.doctor.machine import examine

    _title("This machine")
    return [_told(finding) for finding in examine(runs_dir.absolute())]


async def _cluster(where: Where, *, asked: bool) -> list["Finding"]:
    _title("The cluster")
    return [_told(finding) async for finding in _looked_at(where, asked=asked)]


async def _looked_at(where: Where, *, asked: bool) -> AsyncIterator["Finding"]:
    from kubealign.client.errors import KubealignError
    from kubealign.client.kubernetes_api import connect
    from kubealign.doctor.cluster import examine
    from kubealign.doctor.finding import missing, warning

    try:
        api = await connect(where.kubeconfig, where.context, seconds=_CALL_SECONDS)
    except KubealignError as error:
        # Whoever has no cluster may want none.
        tell = missing if asked else warning
        yield tell("kubeconfig", str(error), "name one with --kubeconfig, or run jobs on this machine")
        return
    async with api:
        async for finding in examine(api, where.namespace or api.namespace):
            yield finding


def _title(text: str) -> None:
    from rich.text import Text

    from kubealign.cli.terminal import console

    console().print(Text(text, style="bold"))


def _told(finding: "Finding") -> "Finding":
    """Show it as soon as it is known: some looks take seconds."""
    from rich.text import Text

    from kubealign.cli.terminal import console, safe

    line = Text("  ").append(f"{finding.health:<9}", style=_STYLES[finding.health])
    line.append(f"{finding.what}: ", style="bold").append(safe(finding.detail), style="default")
    console().print(line, soft_wrap=True)
    if finding.remedy:
        console().print(Text(f"           -> {safe(finding.remedy)}", style="default"), soft_wrap=True)
    return finding
