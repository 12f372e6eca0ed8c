"""`kubealign fork`: starts a new job from a checkpoint of another one, with some fields changed."""

from typing import Annotated

import typer

from kubealign.cli.command import CommandContext, backend_command
from kubealign.cli.completion import complete_job_names
from kubealign.cli.options import RowFormat


@backend_command
async def fork(
    ctx: CommandContext,
    run: Annotated[str, typer.Argument(metavar="RUN", show_default=False, autocompletion=complete_job_names)],
    at: Annotated[
        int,
        typer.Option("--at", metavar="STEP", min=1, help="Step of a checkpoint of RUN.", show_default=False),
    ],
    name: Annotated[
        str, typer.Option("--name", metavar="NAME", help="Name of the new job.", show_default=False)
    ],
    set_: Annotated[
        list[str],
        typer.Option(
            "--set",
            metavar="PATH=VALUE",
            help="Change a field, as in spec.trainer.optimizer.adamW.learningRate=1e-6; may be repeated.",
            show_default=False,
        ),
    ] = [],  # noqa: B006 (typer copies it)
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Print the changes and the first step; nothing is stored or started."),
    ] = False,
    output: Annotated[RowFormat, typer.Option("--output", "-o", help="Output format.")] = RowFormat.TABLE,
) -> None:
    """Start a new job from a checkpoint of RUN, with some fields changed.

    Weights, optimiser state, random streams and the position in the data are those of the checkpoint, and
    the first step is the one after it. RUN is only read. Fields that the checkpoint does not fit are refused,
    such as the model, the data, the adapter or the algorithm.
    """
    from kubealign.client.submission import to_document
    from kubealign.spec.changes.fork import fork_job

    record = await ctx.backend.get(await ctx.ref(run))
    forked = fork_job(record.resource, name, at, set_)
    await ctx.backend.create(to_document(forked.job), dry_run=dry_run)
    if output is RowFormat.JSON:
        from kubealign.cli.output import format_json

        typer.echo(format_json(forked.to_document()))
        return
    state = "valid (dry run)" if dry_run else "submitted"
    typer.echo(f"{name}: {state}, from the checkpoint of step {at} of {run}; its first step is {at + 1}")
    for change in forked.changes:
        typer.echo(f"  {change}")
