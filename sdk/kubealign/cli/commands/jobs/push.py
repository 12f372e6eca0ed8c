"""`kubealign push`."""

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from kubealign.cli.command import CommandContext, backend_command
from kubealign.cli.options import JobName

if TYPE_CHECKING:
    from kubealign.client.records import JobRef

#: Steps that are read to find the last validation.
_MAX_STEPS = 100_000


@backend_command
async def push(
    ctx: CommandContext,
    job: JobName,
    repo: Annotated[str, typer.Argument(metavar="REPO", help="Such as acme/sums-7b.", show_default=False)],
    private: Annotated[bool, typer.Option("--private", help="Create a private repository.")] = False,
    revision: Annotated[
        str | None,
        typer.Option(
            "--revision", metavar="BRANCH", help="Branch; the main one by default.", show_default=False
        ),
    ] = None,
) -> None:
    """Push the result of a job to the Hugging Face hub, with a model card.

    The card has the algorithm, the settings of the training and the last validation metrics. The token is
    that of huggingface_hub: HF_TOKEN, or `hf auth login`.
    """
    from kubealign.hub.push import push_result

    ref = await ctx.ref(job)
    record = await ctx.backend.get(ref)
    folder = await ctx.backend.result(ref)
    metrics = await _last_validation(ctx, ref)
    address = await asyncio.to_thread(
        push_result, record, folder, metrics, repo, private=private, revision=revision
    )
    typer.echo(address)


async def _last_validation(ctx: CommandContext, ref: "JobRef") -> dict[str, float]:
    """Return the last validation metrics; none, with a warning, if the metrics cannot be read."""
    from kubealign.client.errors import KubealignError

    try:
        steps = await ctx.backend.metrics(ref, count=_MAX_STEPS)
    except KubealignError as error:
        ctx.console.print(f"[yellow]the card has no metrics:[/yellow] {error}")
        return {}
    latest: dict[str, float] = {}
    for step in steps:
        latest.update({name: value for name, value in step.values.items() if name.startswith("val/")})
    return latest
