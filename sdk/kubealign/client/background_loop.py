"""An event loop in a thread of its own, for programs that have none, or have one that runs already."""

import asyncio
import os
import threading
import time
from collections.abc import AsyncIterator, Coroutine, Generator
from concurrent.futures import CancelledError, Future, wait
from typing import Any, TypeVar

from kubealign.client.errors import NotPossible

T = TypeVar("T")

_ENDING_SECONDS = 10.0
_SIGNAL_SECONDS = 1.0
_END = object()


class BackgroundLoop:
    """It ends with `close`, or with the program."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._work, name="kubealign client", daemon=True)
        self._thread.start()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Its result. When the caller is interrupted, so is the work."""
        try:
            self._check()
        except NotPossible:
            work.close()
            raise
        over = threading.Event()
        future: Future[T] | None = None
        try:
            future = asyncio.run_coroutine_threadsafe(_telling(work, over), self._loop)
            # A signal that comes just before a wait begins is seen only after it.
            while wait([future], _SIGNAL_SECONDS).not_done:
                continue
            return future.result()
        except CancelledError:
            raise NotPossible("the client was closed meanwhile") from None
        except BaseException:
            if future is not None and future.cancel():
                # What it worked on can be closed only when it has let go of it.
                over.wait(_ENDING_SECONDS)
            raise

    def iterate(self, items: AsyncIterator[T], seconds: float | None = None) -> Generator[T, None, None]:
        """Its items, each asked for when the one before is done with. Raises TimeoutError when the end has
        not come after so many seconds."""
        deadline = None if seconds is None else time.monotonic() + seconds
        try:
            while True:
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
                item = self.call(_next(items, left))
                if item is _END:
                    return
                yield item
        finally:
            if not self.closed:
                self.call(_end(items))

    @property
    def closed(self) -> bool:
        return self._loop.is_closed() or not self._thread.is_alive() or os.getpid() != self._process

    def close(self) -> None:
        """End what is under way, and the thread."""
        if self.closed:
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_ENDING_SECONDS)

    def _check(self) -> None:
        if os.getpid() != self._process:
            raise NotPossible(
                "this client was made before the process forked: make a new one in each process"
            )
        if self.closed:
            raise NotPossible("this client is closed: make a new one")
        if threading.current_thread() is self._thread:
            raise NotPossible("called from the client's own event loop: use AsyncAlignmentClient there")

    def _work(self) -> None:
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


async def _telling(work: Coroutine[Any, Any, T], over: threading.Event) -> T:
    try:
        return await work
    finally:
        over.set()


async def _next(items: AsyncIterator[T], seconds: float | None = None) -> T | Any:
    async with asyncio.timeout(seconds):
        return await anext(items, _END)


async def _end(items: AsyncIterator[Any]) -> None:
    close = getattr(items, "aclose", None)
    if close is not None:
        await close()
