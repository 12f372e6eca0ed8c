"""The launcher of a pod with two ranks: their end, their health, and their output."""

import asyncio
import http.client
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from kubealign.local.processes.fork_server import ChildProcess, ForkServer
from kubealign.local.processes.ports import LOOPBACK, PortAllocator

pytestmark = pytest.mark.timeout(120)

TESTS = Path(__file__).parents[2]
_PROGRAM = "support.pod_of_ranks"
_SECONDS = 60.0


class Pod:
    """A launcher with two ranks."""

    def __init__(self, folder: Path, health: int, child: ChildProcess) -> None:
        self.folder = folder
        self.child = child
        self._health = health

    @property
    def termination(self) -> str:
        path = self.folder / "termination"
        return path.read_text() if path.exists() else ""

    @property
    def lines(self) -> list[str]:
        return self.child.log.read_text().splitlines()

    async def end(self) -> int:
        async with asyncio.timeout(_SECONDS):
            return await self.child.wait()

    async def status(self, path: str) -> int:
        """Return the status of a probe; 0: no answer."""
        return await asyncio.to_thread(self._probe, path)

    def _probe(self, path: str) -> int:
        connection = http.client.HTTPConnection(LOOPBACK, self._health, timeout=10)
        try:
            connection.request("GET", path)
            return connection.getresponse().status
        except OSError:
            return 0
        finally:
            connection.close()

    async def until(self, path: str, status: int) -> None:
        """Wait until a probe has this status."""
        async with asyncio.timeout(_SECONDS):
            while True:
                if await self.status(path) == status:
                    return
                await asyncio.sleep(0.05)


Launch = Callable[..., Awaitable[Pod]]


@pytest.fixture
async def launch(tmp_path: Path) -> AsyncIterator[Launch]:
    ports, pods = PortAllocator(), list[Pod]()
    async with ForkServer([_PROGRAM], tmp_path / "fork-server.log") as fork_server:

        async def start(*behaviours: str) -> Pod:
            folder = tmp_path / str(len(pods))
            folder.mkdir()
            health, *ranks = (ports.allocate() for _ in range(1 + len(behaviours)))
            variables = {f"RANK_{rank}": behaviour for rank, behaviour in enumerate(behaviours)}
            arguments = [str(folder), str(health), *map(str, ranks)]
            environment = {**variables, "PYTHONPATH": str(TESTS)}
            child = await fork_server.start_module("pod", folder / "log", _PROGRAM, arguments, environment)
            pods.append(Pod(folder, health, child))
            return pods[-1]

        yield start
        for pod in pods:
            pod.child.kill()
            await pod.child.wait()


async def test_a_signal_reaches_every_rank(launch: Launch) -> None:
    pod = await launch("serves", "serves")
    await pod.until("/readyz", 200)
    pod.child.terminate()
    assert await pod.end() == 143
    assert pod.lines.count("stopped") == 2
    assert '{"process": "rank-1", "devices": "1"}' in pod.lines
    assert pod.termination == ""


@pytest.mark.parametrize(
    ("first", "second", "code", "message"),
    [
        ("ignores_the_signal", "crashes", 3, "rank-1 ended with code 3"),
        ("is_killed", "ignores_the_signal", 137, "rank-0 was killed by SIGKILL"),
        # A rank that says why it ends is the cause, not one that has lost it.
        ("crashes", "fails", 78, "rank-1: the learning rate is not a number"),
    ],
)
async def test_one_rank_that_ends_ends_the_pod(
    launch: Launch, first: str, second: str, code: int, message: str
) -> None:
    pod = await launch(first, second)
    assert await pod.end() == code, pod.lines
    assert pod.termination.startswith(message)


async def test_the_pod_is_ready_and_live_when_every_rank_is(launch: Launch) -> None:
    loading, hanging = await launch("serves", "loads"), await launch("hangs", "serves")
    await loading.until("/livez", 200)
    assert await loading.status("/readyz") == 503
    await hanging.until("/readyz", 200)
    assert await hanging.status("/livez") == 503


async def test_lines_of_different_ranks_are_not_mixed(launch: Launch) -> None:
    pod = await launch("writes", "writes")
    assert await pod.end() == 0
    written = [line for line in pod.lines if not line.startswith("{")]
    assert sorted(set(written)) == ["0" * 10_000, "1" * 10_000]
    assert len(written) == 200
