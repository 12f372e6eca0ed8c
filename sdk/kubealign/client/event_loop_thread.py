"""Event loop in a thread of its own, for programs without a loop or with one that is already running."""

import asyncio
import os
import threading
import time
from collections.abc import AsyncIterator, Coroutine, Generator
from concurrent.futures import CancelledError, Future, wait
from typing import Any, TypeVar

from kubealign.client.errors import NotPossible

T = TypeVar("T")

_SHUTDOWN_TIMEOUT_SECONDS = 10.0
_SIGNAL_POLL_SECONDS = 1.0
_END = object()


class EventLoopThread:
    """Event loop thread that ends with `close`, or with the program."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="kubealign client", daemon=True)
        self._thread.start()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine and return its result. An interrupt of the caller cancels the coroutine."""
        try:
            self._check_usable()
        except NotPossible:
            work.close()
            raise
        finished = threading.Event()
        future: Future[T] | None = None
        try:
            future = asyncio.run_coroutine_threadsafe(_run_and_signal(work, finished), self._loop)
            # A signal that arrives just before a wait begins is only handled after the wait.
            while wait([future], _SIGNAL_POLL_SECONDS).not_done:
                continue
            return future.result()
        except CancelledError:
            raise NotPossible("the client was closed in the meantime") from None
        except BaseException:
            if future is not None and future.cancel():
                # Resources can only be closed after the cancelled work has released them.
                finished.wait(_SHUTDOWN_TIMEOUT_SECONDS)
            raise

    def iterate(self, items: AsyncIterator[T], timeout: float | None = None) -> Generator[T, None, None]:
        """Yield the items of an async iterator; each is requested when the previous one has been consumed.

        Raises TimeoutError if the iterator has not ended after `timeout` seconds.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        try:
            while True:
                remaining = None if deadline is None else max(0.0, deadline - time.monotonic())
                item = self.call(_next(items, remaining))
                if item is _END:
                    return
                yield item
        finally:
            if not self.is_closed:
                self.call(_close_iterator(items))

    @property
    def is_closed(self) -> bool:
        return self._loop.is_closed() or not self._thread.is_alive() or os.getpid() != self._process

    def close(self) -> None:
        """Cancel all running work and end the thread."""
        if self.is_closed:
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_SHUTDOWN_TIMEOUT_SECONDS)

    def _check_usable(self) -> None:
        if os.getpid() != self._process:
            raise NotPossible(
                "this client was created before the process forked: create a new one in each process"
            )
        if self.is_closed:
            raise NotPossible("this client is closed: create a new one")
        if threading.current_thread() is self._thread:
            raise NotPossible("called from the client's own event loop: use AsyncAlignmentClient there")

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            tasks = asyncio.all_tasks(self._loop)
            for task in tasks:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()


async def _run_and_signal(work: Coroutine[Any, Any, T], finished: threading.Event) -> T:
    try:
        return await work
    finally:
        finished.set()


async def _next(items: AsyncIterator[T], seconds: float | None = None) -> T | Any:
    async with asyncio.timeout(seconds):
        return await anext(items, _END)


async def _close_iterator(items: AsyncIterator[Any]) -> None:
    close = getattr(items, "aclose", None)
    if close is not None:
        await close()
