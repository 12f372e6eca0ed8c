"""The supervisor with plain programs."""

import asyncio
from pathlib import Path

import pytest
from local_job import alive

from kubealign.local.processes.fork_server import ChildProcess, ForkServer
from kubealign.local.processes.supervisor import ManagedProcess, ManagedUnit, Supervisor

pytestmark = pytest.mark.timeout(60)


async def test_started_process_is_ended_after_a_cancelled_start(tmp_path: Path) -> None:
    begun, go_on, start_done = asyncio.Event(), asyncio.Event(), asyncio.Event()
    started: list[ChildProcess] = []

    async def launch(fork_server: ForkServer) -> ChildProcess:
        begun.set()
        await go_on.wait()
        started.append(await fork_server.start_program("sleeper", tmp_path / "log", ["/bin/sleep", "1000"]))
        start_done.set()
        return started[0]

    async with ForkServer([], tmp_path / "fork-server.log") as fork_server:

        async def start() -> ChildProcess:
            # Simulates a request that another thread has already begun to carry out.
            return await asyncio.shield(asyncio.ensure_future(launch(fork_server)))

        text: list[str] = []
        supervisor = Supervisor(0, text.append)
        supervisor.add(ManagedUnit("sleeper", "sleeper", (ManagedProcess("sleeper", start),)))
        await begun.wait()
        ending = asyncio.ensure_future(supervisor.terminate(["sleeper"], 5.0, asyncio.Event()))
        await asyncio.sleep(0)
        go_on.set()
        await ending
        await start_done.wait()
        assert not alive(started[0].pid)
        # The process ended by the request, without a kill.
        assert text == []
