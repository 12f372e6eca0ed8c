"""`kubealign list` and `kubealign get`."""

from enum import StrEnum
from typing import Annotated

import typer

from kubealign.cli.command import Here, asks_site
from kubealign.cli.options import Format, JobNames, Output
from kubealign.cli.printing import print_document, print_list
from kubealign.cli.terminal import show

_PAGE = 500


class Sort(StrEnum):
    """Sort field; a leading hyphen sorts in descending order."""

    NAME = "name"
    CREATED = "created"
    NEWEST = "-created"
    PHASE = "phase"
    STEP = "step"
    FURTHEST = "-step"
    REWARD = "reward"
    BEST = "-reward"


@asks_site
async def list_jobs(
    here: Here,
    all_namespaces: Annotated[
        bool, typer.Option("--all-namespaces", "-A", help="List jobs of every namespace.")
    ] = False,
    selector: Annotated[
        str,
        typer.Option(
            "--selector", "-l", metavar="LABELS", help="Label selector, such as team=math,stage!=old.", show_default=False
        ),
    ] = "",
    search: Annotated[
        str, typer.Option("--search", metavar="TEXT", help="Part of the name.", show_default=False)
    ] = "",
    phase: Annotated[
        list[str],
        typer.Option("--phase", metavar="PHASE", help="Only jobs in this phase; may be repeated.", show_default=False),
    ] = [],  # noqa: B006 (typer copies it)
    algorithm: Annotated[
        list[str],
        typer.Option("--algorithm", metavar="NAME", help="Such as ppo; may be repeated.", show_default=False),
    ] = [],  # noqa: B006
    sort: Annotated[Sort, typer.Option("--sort", help="Sort field; -created sorts the newest first.")] = Sort.NAME,
    limit: Annotated[
        int, typer.Option("--limit", min=0, help="Largest number of jobs; 0: all.")
    ] = 0,
    output: Output = Format.TABLE,
) -> None:
    """List jobs."""
    from kubealign.cli.job_table import jobs
    from kubealign.client.records import JobRecord, ListQuery

    phases = _phases(phase)
    _checked(selector)
    matching: list[JobRecord] = []
    after = ""
    while True:
        query = ListQuery(
            namespace=_namespace(here, all_namespaces),
            label_selector=selector,
            search=search,
            phases=phases,
            algorithms=frozenset(algorithm),
            sort=sort.value,
            limit=min(_PAGE, limit - len(matching)) if limit else _PAGE,
            after=after,
        )
        page = await here.site.list(query)
        matching += page.jobs
        after = page.next
        if not after or (limit and len(matching) >= limit):
            break
    if output not in (Format.TABLE, Format.WIDE):
        print_list(matching, output)
    elif matching:
        show(here.console, jobs(matching, namespaces=all_namespaces, wide=output is Format.WIDE))
    else:
        typer.echo(_nothing(here, all_namespaces, bool(selector or search or phase or algorithm)), err=True)


def _namespace(here: Here, all_namespaces: bool) -> str | None:
    """Return the namespace of the query; None for every namespace, the default on this machine."""
    if all_namespaces or (here.site.kind == "local" and here.where.namespace is None):
        return None
    return here.namespace


def _phases(texts: list[str]) -> frozenset[str]:
    from kubealign.spec.status import JobPhase

    name_by_lower = {phase.value.lower(): phase.value for phase in JobPhase}
    wrong = [text for text in texts if text.lower() not in name_by_lower]
    if wrong:
        raise typer.BadParameter(
            f"{wrong[0]!r} is not a phase: it must be one of {', '.join(name_by_lower.values())}", param_hint="--phase"
        )
    return frozenset(name_by_lower[text.lower()] for text in texts)


def _checked(selector: str) -> None:
    from kubealign.client.errors import JobInvalid
    from kubealign.client.label_selector import label_selector

    try:
        label_selector(selector)
    except JobInvalid as error:
        raise typer.BadParameter(
            str(error).removeprefix("labelSelector: "), param_hint="--selector"
        ) from None


def _nothing(here: Here, all_namespaces: bool, filtered: bool) -> str:
    noun = "such jobs" if filtered else "jobs"
    if here.where.folder is not None:
        return f"No {noun} in {here.where.folder}."
    return f"No {noun} in any namespace." if all_namespaces else f"No {noun} in namespace {here.namespace}."


@asks_site
async def get(here: Here, jobs: JobNames, output: Output = Format.TABLE) -> None:
    """Show jobs by name; -o yaml and -o json print the full resources."""
    from kubealign.cli import job_table

    records = [await here.site.get(await here.ref(name)) for name in jobs]
    if output in (Format.TABLE, Format.WIDE):
        show(here.console, job_table.jobs(records, wide=output is Format.WIDE))
    elif len(records) == 1:
        print_document(records[0], output)
    else:
        print_list(records, output)
