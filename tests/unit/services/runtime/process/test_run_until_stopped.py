"""Running until a stop, and permanent failures in exception groups."""

import asyncio
import errno

import pytest

from kubealign_services.runtime.process.failures import (
    PermanentFailure,
    find_permanent_failure,
    find_storage_failure,
)
from kubealign_services.runtime.process.run_until_stopped import run_until_stopped
from kubealign_services.runtime.rpc.errors import StorageFull


async def test_stop_cancels_the_work() -> None:
    stop, ended = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    running = asyncio.create_task(run_until_stopped(stop, work(), work()))
    await asyncio.sleep(0)
    stop.set()
    await asyncio.wait_for(running, 5)
    assert ended.is_set()


async def test_failure_propagates_and_cancels_the_rest() -> None:
    ended = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async def fail() -> None:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        await asyncio.wait_for(run_until_stopped(asyncio.Event(), work(), fail()), 5)
    assert ended.is_set()


async def test_swallowed_cancellation_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kubealign_services.runtime.process.run_until_stopped._CANCEL_RETRY_SECONDS", 0.01)
    stop = asyncio.Event()
    stop.set()
    lost = 0

    async def work() -> None:
        nonlocal lost
        while lost < 3:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                lost += 1

    await asyncio.wait_for(run_until_stopped(stop, work()), 10)
    assert lost == 3


async def test_finished_work_ends_the_wait() -> None:
    await asyncio.wait_for(run_until_stopped(asyncio.Event(), asyncio.sleep(0)), 5)


def test_permanent_failure_is_found_in_groups() -> None:
    cause = PermanentFailure("the data has no column answer")
    assert find_permanent_failure(cause) is cause
    group = ExceptionGroup("tasks", [ValueError("x"), ExceptionGroup("inner", [cause])])
    assert find_permanent_failure(group) is cause
    assert find_permanent_failure(ExceptionGroup("tasks", [ValueError("x")])) is None
    assert find_permanent_failure(ValueError("x")) is None


def test_a_full_disk_is_a_failure_of_storage_and_names_the_file() -> None:
    error = ExceptionGroup(
        "tasks", [OSError(errno.ENOSPC, "No space left on device", "/runs/a/metrics.jsonl")]
    )
    assert find_permanent_failure(error) is None
    assert find_storage_failure(error) == "No space left on device at /runs/a/metrics.jsonl"
    assert find_storage_failure(StorageFull("trainer Save: the disk is full")) == (
        "trainer Save: the disk is full"
    )
    assert find_storage_failure(OSError(errno.EACCES, "Permission denied")) is None
