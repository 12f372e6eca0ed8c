import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kubealign.local.processes.fork_server import ForkServer

# The role of the tests' processes is imported by name, in those processes too.
sys.path.insert(0, str(Path(__file__).parent))

from local_job import Place, alive


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    async with ForkServer(["grpc", "grpc_health.v1.health"], tmp_path / "fork-server.log") as fork_server:
        place = Place(tmp_path, fork_server)
        place.behave()
        yield place
        await place.end()
        for pid in place.pids():
            if alive(pid):
                os.kill(pid, signal.SIGKILL)
