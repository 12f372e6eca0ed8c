"""The process that the others are forked from."""

import multiprocessing.forkserver
import os
import select
import signal
from pathlib import Path

import pytest

from kubealign.local.fork_server import ForkServer

pytestmark = pytest.mark.timeout(60)


async def test_one_that_ends_while_a_process_is_started_is_followed_by_its_like(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not by one without orders, which nobody would end."""
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
        first = await server.program("first", tmp_path / "first.log", ["/bin/true"])
        assert await first.wait() == 0
        monkeypatch.setattr(multiprocessing.forkserver, "ensure_running", then_ends)
        second = await server.program("second", tmp_path / "second.log", ["/bin/true"])
        assert await second.wait() == 0
