"""`kubealign doctor`: finds missing prerequisites and states the remedies."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from kubealign.cli.exit_codes import CliExitCode
from kubealign.cli.options import Context, Kubeconfig, Local, Namespace, NoColor, RunsDir
from kubealign.cli.target import CommandTarget

if TYPE_CHECKING:
    from kubealign.diagnostics.doctor.check_result import CheckResult

_CALL_TIMEOUT_SECONDS = 10.0
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
    required prerequisite is missing.
    """
    from kubealign.cli.terminal import without_color

    target = CommandTarget(local, runs_dir, kubeconfig, context, namespace)
    # Raises if options of both targets are given, as in every command.
    runs_folder = target.runs_folder
    cluster_only = kubeconfig is not None or context is not None
    with without_color(no_color):
        findings = []
        if not cluster_only:
            findings += _check_machine(runs_folder or Path("runs"))
        if not local and runs_dir is None:
            findings += asyncio.run(_check_cluster(target, is_requested=cluster_only))
    raise typer.Exit(
        CliExitCode.FAILED if any(item.health == "missing" for item in findings) else CliExitCode.DONE
    )


def _check_machine(runs_dir: Path) -> list["CheckResult"]:
    from kubealign.diagnostics.doctor.machine import run_checks

    _print_title("This machine")
    return [_print_finding(finding) for finding in run_checks(runs_dir.absolute())]


async def _check_cluster(target: CommandTarget, *, is_requested: bool) -> list["CheckResult"]:
    _print_title("The cluster")
    return [_print_finding(finding) async for finding in _cluster_findings(target, is_requested=is_requested)]


async def _cluster_findings(target: CommandTarget, *, is_requested: bool) -> AsyncIterator["CheckResult"]:
    from kubealign.client.errors import KubealignError
    from kubealign.diagnostics.doctor.check_result import missing, warning
    from kubealign.diagnostics.doctor.cluster import run_checks
    from kubealign.kube.api import connect

    try:
        api = await connect(target.kubeconfig, target.context, timeout=_CALL_TIMEOUT_SECONDS)
    except KubealignError as error:
        # Without an explicit cluster option, a missing cluster is not an error.
        report = missing if is_requested else warning
        yield report("kubeconfig", str(error), "name one with --kubeconfig, or run jobs on this machine")
        return
    async with api:
        async for finding in run_checks(api, target.namespace or api.namespace):
            yield finding


def _print_title(text: str) -> None:
    from rich.text import Text

    from kubealign.cli.terminal import console

    console().print(Text(text, style="bold"))


def _print_finding(finding: "CheckResult") -> "CheckResult":
    """Print a finding at once, because some checks take seconds."""
    from rich.text import Text

    from kubealign.cli.terminal import console, escape_control

    line = Text("  ").append(f"{finding.health:<9}", style=_STYLES[finding.health])
    line.append(f"{finding.what}: ", style="bold").append(escape_control(finding.detail), style="default")
    console().print(line, soft_wrap=True)
    if finding.remedy:
        console().print(
            Text(f"           -> {escape_control(finding.remedy)}", style="default"), soft_wrap=True
        )
    return finding
