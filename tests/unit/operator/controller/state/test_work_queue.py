"""The work queue: unique keys, one worker per key, exponential backoff."""

import asyncio

import pytest

from kubealign_operator.controller.state.work_queue import WorkQueue


class Clock(asyncio.SelectorEventLoop):
    """An event loop whose time passes when nothing else is to be done."""

    def __init__(self) -> None:
        super().__init__()
        self.moment = 0.0

    def time(self) -> float:
        return self.moment

    def pass_time(self, seconds: float) -> None:
        self.moment += seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


def _queue() -> WorkQueue[str]:
    return WorkQueue(jitter=0.0)


async def _now() -> None:
    """Let timers that are due run."""
    await asyncio.sleep(0)
    await asyncio.sleep(0)


async def _taken(queue: WorkQueue[str]) -> list[str]:
    await _now()
    return [await queue.get() for _ in range(len(queue))]


def test_a_key_is_queued_once_in_order(clock: Clock) -> None:
    async def scenario() -> None:
        queue = _queue()
        for key in ("a", "b", "a"):
            queue.add(key)
        assert await _taken(queue) == ["a", "b"]

    clock.run_until_complete(scenario())


def test_a_key_added_during_processing_is_requeued(clock: Clock) -> None:
    async def scenario() -> None:
        queue = _queue()
        queue.add("a")
        assert await queue.get() == "a"
        queue.add("a")
        assert len(queue) == 0
        queue.done("a")
        assert await _taken(queue) == ["a"]
        queue.done("a")
        assert len(queue) == 0

    clock.run_until_complete(scenario())


def test_the_earliest_delay_wins_and_one_get_clears_all(clock: Clock) -> None:
    async def scenario() -> None:
        queue = _queue()
        queue.add_after("a", 10)
        queue.add_after("a", 2)
        queue.add_after("a", 5)
        clock.pass_time(1.9)
        assert await _taken(queue) == []
        clock.pass_time(0.2)
        assert await _taken(queue) == ["a"]
        queue.done("a")
        clock.pass_time(60)
        assert await _taken(queue) == []

    clock.run_until_complete(scenario())


def test_backoff_doubles_up_to_a_minute_and_resets_on_success(clock: Clock) -> None:
    async def scenario() -> None:
        queue = _queue()
        pauses = [queue.retry("a") for _ in range(14)]
        assert pauses[:4] == [0.05, 0.1, 0.2, 0.4]
        assert pauses[-1] == 60.0
        queue.forget("a")
        assert queue.retry("a") == 0.05

    clock.run_until_complete(scenario())


def test_backoff_honours_the_servers_minimum(clock: Clock) -> None:
    async def scenario() -> None:
        queue: WorkQueue[str] = WorkQueue()
        assert 7.0 < queue.retry("a", at_least=7.0) < 7.1
        clock.pass_time(6.9)
        assert await _taken(queue) == []
        clock.pass_time(1.0)
        assert await _taken(queue) == ["a"]

    clock.run_until_complete(scenario())


def test_jitter_is_at_most_half(clock: Clock) -> None:
    async def scenario() -> None:
        queue: WorkQueue[str] = WorkQueue()
        delays = [queue.retry(str(key)) for key in range(200)]
        assert all(0.025 <= delay <= 0.05 for delay in delays)
        assert len(set(delays)) > 100

    clock.run_until_complete(scenario())


def test_a_waiting_worker_gets_a_new_key(clock: Clock) -> None:
    async def scenario() -> None:
        queue = _queue()
        waiting = asyncio.create_task(queue.get())
        await _now()
        queue.add("a")
        assert await waiting == "a"

    clock.run_until_complete(scenario())
