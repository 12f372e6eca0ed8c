"""Defines commands that access a backend: their own parameters, followed by the common backend options."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kubealign.cli.exits import told
from kubealign.cli.options import Context, Dashboard, Kubeconfig, Local, Namespace, NoColor, RunsDir
from kubealign.cli.terminal import console, without_color
from kubealign.cli.where import Where, site_of

if TYPE_CHECKING:
    from rich.console import Console

    from kubealign.client.async_client import AsyncAlignmentClient
    from kubealign.client.records import JobRef
    from kubealign.client.site import Site

_SITE = {
    "local": (Local, False),
    "runs_dir": (RunsDir, None),
    "kubeconfig": (Kubeconfig, None),
    "context": (Context, None),
    "namespace": (Namespace, None),
    "dashboard": (Dashboard, None),
}


_MOST = 500
#: Names of the parameters that every command with a backend has.
SITE_OPTIONS = (*_SITE, "no_color")


@dataclass(frozen=True)
class Here:
    """Backend, target and console of a running command."""

    site: "Site"
    where: Where
    console: "Console"

    @property
    def namespace(self) -> str:
        return self.where.namespace or self.site.namespace

    @property
    def client(self) -> "AsyncAlignmentClient":
        """SDK client over the same backend."""
        from kubealign.client.async_client import AsyncAlignmentClient

        return AsyncAlignmentClient(self.site)

    async def ref(self, name: str) -> "JobRef":
        """Return the reference of a job by name; on this machine the namespace of its document is looked up.
        """
        from kubealign.client.records import JobRef, ListQuery

        default_ref = JobRef(self.namespace, name)
        if self.site.kind != "local" or self.where.namespace is not None:
            return default_ref
        page = await self.site.list(ListQuery(search=name, sort="name", limit=_MOST))
        return next((record.ref for record in page.jobs if record.name == name), default_ref)


Body = Callable[..., Awaitable[None]]


def asks_site(body: Body) -> Callable[..., None]:
    """Turn an async function of a CommandContext and further parameters into a typer command."""
    own = list(inspect.signature(body, eval_str=True).parameters.values())[1:]
    keyword = inspect.Parameter.KEYWORD_ONLY
    shared = [
        inspect.Parameter(name, keyword, annotation=option, default=default)
        for name, (option, default) in _SITE.items()
    ]
    shared.append(inspect.Parameter("no_color", keyword, annotation=NoColor, default=False))
    parameters = [*(parameter.replace(kind=keyword) for parameter in own), *shared]

    def command(**arguments: Any) -> None:
        no_color = arguments.pop("no_color")
        target = Where(**{name: arguments.pop(name) for name in _SITE})
        with without_color(no_color), told():
            asyncio.run(_ask(body, target, arguments))

    # Typer reads the parameters from these attributes.
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    command.__doc__ = body.__doc__
    command.__name__ = getattr(body, "__name__", "command")
    return command


async def _ask(body: Body, where: Where, given: dict[str, Any]) -> None:
    async with site_of(where) as site:
        await body(Here(site, where, console()), **given)
