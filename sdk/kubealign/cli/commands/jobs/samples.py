"""`kubealign samples`: shows responses of the policy."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from kubealign.cli.command import CommandContext, backend_command
from kubealign.cli.options import JobName, RowFormat
from kubealign.cli.output import format_json
from kubealign.cli.terminal import show

if TYPE_CHECKING:
    from kubealign.read_model import SampleRecord


@backend_command
async def samples(
    ctx: CommandContext,
    job: JobName,
    step: Annotated[
        int | None, typer.Option("--step", min=0, help="Only samples of this step.", show_default=False)
    ] = None,
    count: Annotated[
        int, typer.Option("--count", "-c", min=1, max=1000, help="Largest number of samples.")
    ] = 5,
    output: Annotated[RowFormat, typer.Option("--output", "-o", help="Output format.")] = RowFormat.TABLE,
) -> None:
    """Show a job's newest samples: prompt, response, rewards, weight version."""
    from kubealign.cli.views.sample_view import sample_view

    newest_samples = await ctx.backend.samples(await ctx.ref(job), count=count, step=step, newest=True)
    if output is RowFormat.JSON:
        typer.echo(format_json([_to_document(sample) for sample in reversed(newest_samples)]))
    elif newest_samples:
        show(ctx.console, *(sample_view(sample) for sample in reversed(newest_samples)))
    else:
        typer.echo(f"No samples of {job}" + (f" at step {step}." if step is not None else " yet."), err=True)


def _to_document(sample: "SampleRecord") -> dict[str, Any]:
    """Return the sample in the form of the REST API."""
    from dataclasses import asdict

    from pydantic.alias_generators import to_camel

    return {to_camel(name): value for name, value in asdict(sample).items()}
