"""Fixtures that run commands against a backend in memory."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from kubealign.cli import command
from kubealign.cli.main import app
from kubealign.cli.target import CommandTarget
from kubealign.client.records import JobRef
from support.bad_specs import whole_job
from support.memory_backend import MemoryBackend

Run = Callable[..., Result]
Submitted = Callable[..., JobRef]


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> MemoryBackend:
    """Backend that every command opens, whatever its options select."""
    backend = MemoryBackend(kind="cluster")

    @asynccontextmanager
    async def open_backend(target: CommandTarget) -> AsyncIterator[MemoryBackend]:
        # Evaluated like in the real function, which may raise.
        target.runs_folder  # noqa: B018
        yield backend

    monkeypatch.setattr(command, "open_backend", open_backend)
    return backend


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command outside of a terminal and return its output and exit code."""
    for name in ("KUBEALIGN_RUNS_DIR", "NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    # Keeps typer's boxed messages on one line.
    monkeypatch.setenv("TERMINAL_WIDTH", "300")

    def invoke(*arguments: str, **how: Any) -> Result:
        return CliRunner().invoke(app, list(arguments), **how)

    return invoke


@pytest.fixture
def submitted(site: MemoryBackend) -> Submitted:
    """Submit a job to the backend."""

    def submit(algorithm: str, namespace: str = "default", **labels: str) -> JobRef:
        document = whole_job(algorithm)
        document["metadata"] |= {"namespace": namespace, "labels": labels}
        return asyncio.run(site.create(document)).ref

    return submit
