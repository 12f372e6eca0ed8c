"""Event loop thread of the synchronous client."""

import asyncio
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Iterator

import pytest

from kubealign.client.errors import NotPossible
from kubealign.client.event_loop_thread import EventLoopThread


async def numbers(ended: list[str], pause: float = 0.0) -> AsyncIterator[int]:
    try:
        for number in range(3):
            yield number
            await asyncio.sleep(pause)
    finally:
        ended.append("ended")


async def answer(value: int = 42) -> int:
    return value


async def test_call_works_while_an_event_loop_is_running() -> None:
    loop = EventLoopThread()
    assert loop.call(answer()) == 42
    ended: list[str] = []
    assert list(loop.iterate(numbers(ended))) == [0, 1, 2]
    assert ended == ["ended"]
    loop.close()
    loop.close()
    with pytest.raises(NotPossible, match="closed"):
        loop.call(answer())


def test_iterator_is_closed_when_the_reader_stops() -> None:
    loop = EventLoopThread()
    ended: list[str] = []
    for number in loop.iterate(numbers(ended)):
        if number == 1:
            break
    # The generator is closed as soon as no reference is left.
    assert ended == ["ended"]
    with pytest.raises(TimeoutError):
        list(loop.iterate(numbers(ended, pause=60.0), timeout=0.05))
    assert ended == ["ended"] * 2
    loop.close()


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Restore the interrupt handler, which a shell disables for background jobs."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_interrupt_cancels_the_work() -> None:
    loop = EventLoopThread()
    started, cancelled = threading.Event(), threading.Event()

    async def work() -> None:
        started.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    def interrupt() -> None:
        started.wait(30)
        # No event signals that the main thread has begun to wait.
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        loop.call(work())
    assert cancelled.is_set()
    assert loop.call(answer()) == 42
    loop.close()


def test_call_after_fork_is_refused() -> None:
    loop = EventLoopThread()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            loop.call(answer())
        except NotPossible as refusal:
            os.write(writer, str(refusal).encode())
        os._exit(0)
    os.close(writer)
    assert b"create a new one in each process" in os.read(reader, 1000)
    os.waitpid(child, 0)
    os.close(reader)
    assert loop.call(answer()) == 42
    loop.close()


def test_call_from_own_thread_is_refused() -> None:
    loop = EventLoopThread()

    async def within() -> int:
        return loop.call(answer())

    with pytest.raises(NotPossible, match="AsyncAlignmentClient"):
        loop.call(within())
    loop.close()
