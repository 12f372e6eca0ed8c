"""Replacement of a dead fork server."""

import multiprocessing.forkserver
import os
import select
import signal
from pathlib import Path

import pytest

from kubealign.local.processes.fork_server import ForkServer

pytestmark = pytest.mark.timeout(60)


async def test_dead_fork_server_is_replaced_during_a_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that the replacement has the same preload configuration, so that it ends with the runner."""
    running = multiprocessing.forkserver.ensure_running  # type: ignore[attr-defined]
    pid_file = tmp_path / "server.pid"

    def then_ends() -> None:
        running()
        pid = int(pid_file.read_text())
        handle = os.pidfd_open(pid)
        os.kill(pid, signal.SIGKILL)
        select.select([handle], [], [])
        os.close(handle)

    async with ForkServer((), tmp_path / "server.log") as server:
        first = await server.start_program("first", tmp_path / "first.log", ["/bin/true"])
        assert await first.wait() == 0
        monkeypatch.setattr(multiprocessing.forkserver, "ensure_running", then_ends)
        second = await server.start_program("second", tmp_path / "second.log", ["/bin/true"])
        assert await second.wait() == 0
