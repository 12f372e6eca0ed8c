"""`kubealign completion`, and shell completion of the names of jobs and processes."""

import asyncio
from enum import StrEnum
from typing import Annotated, Any

import typer

_TIMEOUT_SECONDS = 2.0
_MAX_NAMES = 200


class Shell(StrEnum):
    """Shells with completion scripts."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion(
    shell: Annotated[Shell, typer.Argument(metavar="SHELL", show_default=False, help="bash, zsh or fish.")],
) -> None:
    """Print a script that completes commands, options and job names.

    bash: source <(kubealign completion bash), in ~/.bashrc.
    zsh: source <(kubealign completion zsh), in ~/.zshrc after compinit.
    fish: kubealign completion fish > ~/.config/fish/completions/kubealign.fish
    """
    # Typer's own script, which typer only offers as an option of the root command.
    from typer.completion import get_completion_script  # type: ignore[attr-defined]

    typer.echo(
        get_completion_script(prog_name="kubealign", complete_var="_KUBEALIGN_COMPLETE", shell=shell.value)
    )


def complete_job_names(context: typer.Context, incomplete: str) -> list[str]:
    """Return job names of the backend selected by the options so far; empty if it does not respond soon."""
    try:
        return asyncio.run(_matching_names(_target(context), incomplete))
    except Exception:  # noqa: BLE001 (shell completion cannot show an error)
        return []


def complete_process_names(context: typer.Context, incomplete: str) -> list[str]:
    """Return names of the processes of the job given before; empty as in `complete_job_names`."""
    try:
        return asyncio.run(_matching_processes(_target(context), context.params["job"], incomplete))
    except Exception:  # noqa: BLE001 (shell completion cannot show an error)
        return []


def _target(context: typer.Context) -> Any:
    from kubealign.cli.target import CommandTarget

    options: dict[str, Any] = {name: context.params.get(name) for name in CommandTarget.__dataclass_fields__}
    options["local"] = bool(options["local"])
    return CommandTarget(**options)


async def _matching_names(target: Any, incomplete: str) -> list[str]:
    from kubealign.cli.target import open_backend
    from kubealign.client.records import ListQuery

    async with asyncio.timeout(_TIMEOUT_SECONDS), open_backend(target) as backend:
        default_namespace = backend.namespace if backend.kind == "cluster" else None
        query = ListQuery(
            namespace=target.namespace or default_namespace, search=incomplete, sort="name", limit=_MAX_NAMES
        )
        page = await backend.list(query)
    return [record.name for record in page.jobs if record.name.startswith(incomplete)]


async def _matching_processes(target: Any, job: str, incomplete: str) -> list[str]:
    from kubealign.cli.target import open_backend
    from kubealign.client.records import JobRef

    async with asyncio.timeout(_TIMEOUT_SECONDS), open_backend(target) as backend:
        processes = await backend.processes(JobRef(target.namespace or backend.namespace, job))
    return [process.name for process in processes if process.name.startswith(incomplete)]
