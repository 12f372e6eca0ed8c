"""Termination of a run while the fork server still imports."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from local_job import HERE, Place, alive, command_name, descendants, driver, prepare, trainer

from kubealign.local.processes.fork_server import ForkServer
from kubealign.local.processes.supervisor import UnitState
from kubealign.local.run_dir.status import Phase

pytestmark = pytest.mark.timeout(60)
JOB = [prepare(), trainer(), driver("trainer")]


@pytest.fixture
async def importing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Callable[[float], Awaitable[Place]]]:
    """Return a function that creates a run directory whose fork server imports for a number of seconds."""
    monkeypatch.setenv("PYTHONPATH", str(HERE))
    places: list[Place] = []

    async def place(seconds: float) -> Place:
        monkeypatch.setenv("LOCAL_SLOW_IMPORT_SECONDS", str(seconds))
        server = ForkServer(["local_slow_import"], tmp_path / "fork-server.log")
        result = Place(tmp_path, await server.__aenter__())
        places.append(result)
        result.behave()
        return result

    yield place
    for each_place in places:
        await each_place.end()
        await each_place.fork_server.__aexit__(None, None, None)


async def test_a_process_that_was_being_started_is_ended_too(importing) -> None:
    place = await importing(1.5)
    begun = await place.begin(JOB)
    await begun.until(lambda: begun.state("nats") is UnitState.STARTING)
    begun.interruption.request_stop()
    assert (await begun.task).phase is Phase.STOPPED
    # Once this program has run, all earlier start requests have been carried out.
    probe = await place.fork_server.start_program("true", place.path / "true.log", ["/bin/true"])
    assert await probe.wait() == 0
    fork_server = int((place.path / "fork-server.pid").read_text())
    left = {pid: command_name(pid) for pid in descendants(fork_server) if alive(pid)}
    assert left == {}


async def test_second_signal_does_not_wait_for_imports(importing) -> None:
    place = await importing(1000)
    begun = await place.begin(JOB)
    await begun.until(lambda: begun.state("nats") is UnitState.STARTING)
    await begun.until(lambda: (place.path / "fork-server.pid").exists())
    begun.interruption.request_stop()
    await asyncio.sleep(0)
    assert not begun.task.done()
    begun.interruption.request_stop()
    status = await begun.task
    assert status.phase is Phase.STOPPED
