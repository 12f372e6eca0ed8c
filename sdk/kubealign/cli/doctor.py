"""`kubealign doctor`: finds missing prerequisites and states the remedies."""

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
    """Check the prerequisites of jobs on this machine and on the cluster.

    --local checks this machine only; --context or --kubeconfig check the cluster only. Exit code 1 if a
    required
    prerequisite is missing.
    """
    from kubealign.cli.terminal import without_color

    target = Where(local, runs_dir, kubeconfig, context, namespace)
    # Raises if options of both targets are given, as in every command.
    runs_folder = target.folder
    cluster_only = kubeconfig is not None or context is not None
    with without_color(no_color):
        findings = []
        if not cluster_only:
            findings += _machine(runs_folder or Path("runs"))
        if not local and runs_dir is None:
            findings += asyncio.run(_cluster(target, asked=cluster_only))
    raise typer.Exit(ExitCode.FAILED if any(item.health == "missing" for item in findings) else ExitCode.DONE)


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
        # Without an explicit cluster option, a missing cluster is not an error.
        report = missing if asked else warning
        yield report("kubeconfig", str(error), "name one with --kubeconfig, or run jobs on this machine")
        return
    async with api:
        async for finding in examine(api, where.namespace or api.namespace):
            yield finding


def _title(text: str) -> None:
    from rich.text import Text

    from kubealign.cli.terminal import console

    console().print(Text(text, style="bold"))


def _told(finding: "Finding") -> "Finding":
    """Print a finding at once, because some checks take seconds."""
    from rich.text import Text

    from kubealign.cli.terminal import console, safe

    line = Text("  ").append(f"{finding.health:<9}", style=_STYLES[finding.health])
    line.append(f"{finding.what}: ", style="bold").append(safe(finding.detail), style="default")
    console().print(line, soft_wrap=True)
    if finding.remedy:
        console().print(Text(f"           -> {safe(finding.remedy)}", style="default"), soft_wrap=True)
    return finding
