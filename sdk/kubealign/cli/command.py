"""Defines commands that access a backend: their own parameters, followed by the common backend options."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kubealign.cli.exit_codes import exit_on_error
from kubealign.cli.options import Context, Dashboard, Kubeconfig, Local, Namespace, NoColor, RunsDir
from kubealign.cli.target import CommandTarget, open_backend
from kubealign.cli.terminal import console, without_color

if TYPE_CHECKING:
    from rich.console import Console

    from kubealign.client.async_client import AsyncAlignmentClient
    from kubealign.client.backends.base import JobBackend
    from kubealign.client.records import JobRef

_BACKEND_PARAMETERS = {
    "local": (Local, False),
    "runs_dir": (RunsDir, None),
    "kubeconfig": (Kubeconfig, None),
    "context": (Context, None),
    "namespace": (Namespace, None),
    "dashboard": (Dashboard, None),
}


_MAX_JOBS = 500
#: Names of the parameters that every command with a backend has.
BACKEND_OPTIONS = (*_BACKEND_PARAMETERS, "no_color")


@dataclass(frozen=True)
class CommandContext:
    """Backend, target and console of a running command."""

    backend: "JobBackend"
    target: CommandTarget
    console: "Console"

    @property
    def namespace(self) -> str:
        return self.target.namespace or self.backend.namespace

    @property
    def client(self) -> "AsyncAlignmentClient":
        """SDK client over the same backend."""
        from kubealign.client.async_client import AsyncAlignmentClient

        return AsyncAlignmentClient(self.backend)

    async def ref(self, name: str) -> "JobRef":
        """Return the reference of a job; on this machine, the namespace of its document is looked up."""
        from kubealign.client.records import JobRef, ListQuery

        default_ref = JobRef(self.namespace, name)
        if self.backend.kind != "local" or self.target.namespace is not None:
            return default_ref
        page = await self.backend.list(ListQuery(search=name, sort="name", limit=_MAX_JOBS))
        return next((record.ref for record in page.jobs if record.name == name), default_ref)


CommandBody = Callable[..., Awaitable[None]]


def backend_command(body: CommandBody) -> Callable[..., None]:
    """Turn an async function of a CommandContext and further parameters into a typer command."""
    own = list(inspect.signature(body, eval_str=True).parameters.values())[1:]
    keyword = inspect.Parameter.KEYWORD_ONLY
    shared = [
        inspect.Parameter(name, keyword, annotation=option, default=default)
        for name, (option, default) in _BACKEND_PARAMETERS.items()
    ]
    shared.append(inspect.Parameter("no_color", keyword, annotation=NoColor, default=False))
    parameters = [*(parameter.replace(kind=keyword) for parameter in own), *shared]

    def command(**arguments: Any) -> None:
        no_color = arguments.pop("no_color")
        target = CommandTarget(**{name: arguments.pop(name) for name in _BACKEND_PARAMETERS})
        with without_color(no_color), exit_on_error():
            asyncio.run(_run_body(body, target, arguments))

    # Typer reads the parameters from these attributes.
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    command.__doc__ = body.__doc__
    command.__name__ = getattr(body, "__name__", "command")
    return command


async def _run_body(body: CommandBody, target: CommandTarget, arguments: dict[str, Any]) -> None:
    async with open_backend(target) as backend:
        await body(CommandContext(backend, target, console()), **arguments)
