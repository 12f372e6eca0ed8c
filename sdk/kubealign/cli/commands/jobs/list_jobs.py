"""`kubealign list`, `kubealign get` and `kubealign describe`."""

from enum import StrEnum
from typing import Annotated

import typer

from kubealign.cli.command import CommandContext, backend_command
from kubealign.cli.options import JobNames, Output, OutputFormat
from kubealign.cli.output import print_document, print_list
from kubealign.cli.terminal import show

_PAGE_SIZE = 500


class JobSortOrder(StrEnum):
    """Sort field; a leading hyphen sorts in descending order."""

    NAME = "name"
    CREATED = "created"
    NEWEST = "-created"
    PHASE = "phase"
    STEP = "step"
    FURTHEST = "-step"
    REWARD = "reward"
    BEST = "-reward"


@backend_command
async def list_jobs(
    ctx: CommandContext,
    all_namespaces: Annotated[
        bool, typer.Option("--all-namespaces", "-A", help="List jobs of every namespace.")
    ] = False,
    selector: Annotated[
        str,
        typer.Option(
            "--selector",
            "-l",
            metavar="LABELS",
            help="Label selector, such as team=math,stage!=old.",
            show_default=False,
        ),
    ] = "",
    search: Annotated[
        str, typer.Option("--search", metavar="TEXT", help="Part of the name.", show_default=False)
    ] = "",
    phase: Annotated[
        list[str],
        typer.Option(
            "--phase", metavar="PHASE", help="Only jobs in this phase; may be repeated.", show_default=False
        ),
    ] = [],  # noqa: B006 (typer copies it)
    algorithm: Annotated[
        list[str],
        typer.Option("--algorithm", metavar="NAME", help="Such as ppo; may be repeated.", show_default=False),
    ] = [],  # noqa: B006
    sort: Annotated[
        JobSortOrder, typer.Option("--sort", help="Sort field; -created sorts the newest first.")
    ] = JobSortOrder.NAME,
    limit: Annotated[int, typer.Option("--limit", min=0, help="Largest number of jobs; 0: all.")] = 0,
    output: Output = OutputFormat.TABLE,
) -> None:
    """List jobs."""
    from kubealign.cli.views.job_table import jobs_table
    from kubealign.client.records import JobRecord, ListQuery

    phases = _parse_phases(phase)
    _check_selector(selector)
    matching: list[JobRecord] = []
    after = ""
    while True:
        query = ListQuery(
            namespace=_query_namespace(ctx, all_namespaces),
            label_selector=selector,
            search=search,
            phases=phases,
            algorithms=frozenset(algorithm),
            sort=sort.value,
            limit=min(_PAGE_SIZE, limit - len(matching)) if limit else _PAGE_SIZE,
            after=after,
        )
        page = await ctx.backend.list(query)
        matching += page.jobs
        after = page.next
        if not after or (limit and len(matching) >= limit):
            break
    if output not in (OutputFormat.TABLE, OutputFormat.WIDE):
        print_list(matching, output)
    elif matching:
        show(ctx.console, jobs_table(matching, namespaces=all_namespaces, wide=output is OutputFormat.WIDE))
    else:
        typer.echo(
            _empty_message(ctx, all_namespaces, bool(selector or search or phase or algorithm)), err=True
        )


def _query_namespace(ctx: CommandContext, all_namespaces: bool) -> str | None:
    """Return the namespace of the query; None for every namespace, the default on this machine."""
    if all_namespaces or (ctx.backend.kind == "local" and ctx.target.namespace is None):
        return None
    return ctx.namespace


def _parse_phases(texts: list[str]) -> frozenset[str]:
    from kubealign.spec.status import JobPhase

    name_by_lower = {phase.value.lower(): phase.value for phase in JobPhase}
    wrong = [text for text in texts if text.lower() not in name_by_lower]
    if wrong:
        raise typer.BadParameter(
            f"{wrong[0]!r} is not a phase: it must be one of {', '.join(name_by_lower.values())}",
            param_hint="--phase",
        )
    return frozenset(name_by_lower[text.lower()] for text in texts)


def _check_selector(selector: str) -> None:
    from kubealign.client.errors import JobInvalid
    from kubealign.kube.label_selector import parse_label_selector

    try:
        parse_label_selector(selector)
    except JobInvalid as error:
        raise typer.BadParameter(
            str(error).removeprefix("labelSelector: "), param_hint="--selector"
        ) from None


def _empty_message(ctx: CommandContext, all_namespaces: bool, filtered: bool) -> str:
    noun = "such jobs" if filtered else "jobs"
    if ctx.target.runs_folder is not None:
        return f"No {noun} in {ctx.target.runs_folder}."
    return f"No {noun} in any namespace." if all_namespaces else f"No {noun} in namespace {ctx.namespace}."


@backend_command
async def get(ctx: CommandContext, jobs: JobNames, output: Output = OutputFormat.TABLE) -> None:
    """Show jobs by name; -o yaml and -o json print the full resources."""
    from kubealign.cli.views import job_table

    records = [await ctx.backend.get(await ctx.ref(name)) for name in jobs]
    if output in (OutputFormat.TABLE, OutputFormat.WIDE):
        show(ctx.console, job_table.jobs_table(records, wide=output is OutputFormat.WIDE))
    elif len(records) == 1:
        print_document(records[0], output)
    else:
        print_list(records, output)


@backend_command
async def describe(ctx: CommandContext, jobs: JobNames) -> None:
    """Describe jobs: status, processes, conditions, events and spec; on this machine also checkpoints."""
    from rich.rule import Rule

    from kubealign.cli.views.job_details import job_details
    from kubealign.local.checkpoints import list_checkpoints
    from kubealign.local.runner.admission import run_directory

    for index, name in enumerate(jobs):
        ref = await ctx.ref(name)
        record = await ctx.backend.get(ref)
        folder = ctx.target.runs_folder if ctx.backend.kind == "local" else None
        parts = job_details(
            record,
            await ctx.backend.processes(ref),
            await ctx.backend.events(ref),
            checkpoints=[] if folder is None else list_checkpoints(run_directory(folder, name)),
        )
        show(ctx.console, *([Rule(style="dim")] if index else []), *parts)
