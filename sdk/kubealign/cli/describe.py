"""`kubealign describe`: shows all details of a job on one page."""

from kubealign.cli.command import Here, asks_site
from kubealign.cli.options import JobNames
from kubealign.cli.terminal import show


@asks_site
async def describe(here: Here, jobs: JobNames) -> None:
    """Describe jobs: status, processes, conditions, events and spec."""
    from rich.rule import Rule

    from kubealign.cli.description import description

    for index, name in enumerate(jobs):
        ref = await here.ref(name)
        record = await here.site.get(ref)
        parts = description(record, await here.site.processes(ref), await here.site.events(ref))
        show(here.console, *([Rule(style="dim")] if index else []), *parts)
