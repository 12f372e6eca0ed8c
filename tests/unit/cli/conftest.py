"""Commands against a site in memory, as a person types them."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from kubealign.cli import command
from kubealign.cli.main import app
from kubealign.cli.where import Where
from kubealign.client.records import JobRef
from support.bad_specs import whole_job
from support.memory_site import MemorySite

Run = Callable[..., Result]
Submitted = Callable[..., JobRef]


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> MemorySite:
    """What every command finds, whatever options say where it is."""
    held = MemorySite(kind="cluster")

    @asynccontextmanager
    async def site_of(where: Where) -> AsyncIterator[MemorySite]:
        # As the real one, which decides by it.
        where.folder  # noqa: B018
        yield held

    monkeypatch.setattr(command, "site_of", site_of)
    return held


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """The command's output and exit code, outside of a terminal."""
    for name in ("KUBEALIGN_RUNS_DIR", "NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    # What typer itself says in boxes is not broken anywhere.
    monkeypatch.setenv("TERMINAL_WIDTH", "300")

    def invoke(*arguments: str, **how: Any) -> Result:
        return CliRunner().invoke(app, list(arguments), **how)

    return invoke


@pytest.fixture
def submitted(site: MemorySite) -> Submitted:
    """A job that the site has."""

    def submit(algorithm: str, namespace: str = "default", **labels: str) -> JobRef:
        document = whole_job(algorithm)
        document["metadata"] |= {"namespace": namespace, "labels": labels}
        return asyncio.run(site.create(document)).ref

    return submit
