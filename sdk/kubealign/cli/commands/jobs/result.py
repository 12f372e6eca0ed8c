"""`kubealign result`."""

import asyncio
import shutil
from pathlib import Path
from typing import Annotated

import typer

from kubealign.cli.command import CommandContext, backend_command
from kubealign.cli.options import JobName


@backend_command
async def result(
    ctx: CommandContext,
    job: JobName,
    into: Annotated[
        Path | None,
        typer.Option(
            "--into",
            metavar="FOLDER",
            help="New or empty folder for the result; in a cluster a cache folder by default.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Print the folder of a job's result, a model in Hugging Face layout.

    The result of a job in a cluster is downloaded: from object storage, where the job has a copy that this
    machine can read, else from the job's volume through a pod. --into names the folder.
    """
    target = None if into is None else into.expanduser().absolute()
    folder = await ctx.backend.result(await ctx.ref(job), target)
    if target is not None and folder != target:
        await asyncio.to_thread(_copy, folder, target)
        folder = target
    typer.echo(str(folder))


def _copy(folder: Path, target: Path) -> None:
    """Copy a result that is on this machine. Raises NotPossible if the target is in use or not writable."""
    from kubealign.client.errors import NotPossible
    from kubealign.client.results.fetch import is_free

    if not is_free(target):
        raise NotPossible(f"--into is {target}, which exists: name a folder that is new or empty")
    try:
        shutil.copytree(folder, target, dirs_exist_ok=True)
    except (OSError, shutil.Error) as error:
        raise NotPossible(f"--into is {target}, to which {folder} cannot be copied: {error}") from error
