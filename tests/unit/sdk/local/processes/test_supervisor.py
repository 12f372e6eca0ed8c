"""Restarts of the supervisor, with simulated processes and a simulated clock."""

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import cast

import pytest

from kubealign.local.errors import RunFailed
from kubealign.local.processes.fork_server import ChildProcess
from kubealign.local.processes.supervisor import ManagedProcess, ManagedUnit, Supervisor

CRASHED = 1


class Crash:
    """A process that becomes ready, runs for some seconds of the simulated clock and ends with code 1."""

    name, log, log_start, is_running = "worker", Path("worker.log"), 0, False

    def __init__(self, clock: "Clock", seconds: float) -> None:
        self._clock, self._seconds = clock, seconds
        self.ready = asyncio.Event()

    async def wait(self) -> int:
        await self.ready.wait()
        for _ in range(5):
            await REAL_SLEEP(0)
        self._clock.now += self._seconds
        self._seconds = 0.0
        return CRASHED


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


REAL_SLEEP = asyncio.sleep


async def restart_delays(monkeypatch: pytest.MonkeyPatch, lifetimes: Sequence[float]) -> list[float]:
    """Return the delays before the restarts of a process that was healthy for `lifetimes` seconds."""
    delays: list[float] = []

    async def record(seconds: float) -> None:
        delays.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", record)
    clock = Clock()
    crashes: Iterator[float] = iter(lifetimes)
    current: list[Crash] = []

    async def start() -> ChildProcess:
        current[:] = [Crash(clock, next(crashes))]
        return cast(ChildProcess, current[0])

    async def wait_ready() -> None:
        current[0].ready.set()

    supervisor = Supervisor(len(lifetimes) - 1, lambda message: None, clock=clock)
    supervisor.add(ManagedUnit("worker", "rollout", (ManagedProcess("worker", start, wait_ready),)))
    with pytest.raises(RunFailed):
        await supervisor.wait_for_result()
    return delays


async def test_restart_delays_double_up_to_30_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await restart_delays(monkeypatch, [0.0] * 9) == [0.5, 1, 2, 4, 8, 16, 30, 30]


async def test_a_minute_of_health_resets_the_restart_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await restart_delays(monkeypatch, [0.0, 0.0, 59.9, 60.0, 0.0, 0.0]) == [0.5, 1, 2, 0.5, 1]
