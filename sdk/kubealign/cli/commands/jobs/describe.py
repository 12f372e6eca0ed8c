"""`kubealign describe`: shows all details of a job on one page."""

from kubealign.cli.command import CommandContext, backend_command
from kubealign.cli.options import JobNames
from kubealign.cli.terminal import show


@backend_command
async def describe(ctx: CommandContext, jobs: JobNames) -> None:
    """Describe jobs: status, processes, conditions, events and spec."""
    from rich.rule import Rule

    from kubealign.cli.views.job_details import job_details

    for index, name in enumerate(jobs):
        ref = await ctx.ref(name)
        record = await ctx.backend.get(ref)
        parts = job_details(record, await ctx.backend.processes(ref), await ctx.backend.events(ref))
        show(ctx.console, *([Rule(style="dim")] if index else []), *parts)
