"""A feed of changes that runs while it has readers."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Generic, TypeVar

from kubealign.backoff import Backoff
from kubealign.client.errors import JobNotFound, KubealignError
from kubealign_dashboard.streams.journal import Journal

log = logging.getLogger(__name__)

Item = TypeVar("Item")

_INITIAL_BACKOFF_SECONDS, _MAX_BACKOFF_SECONDS = 1.0, 15.0


class ChangeFeed(Generic[Item]):
    """A journal and the tasks that write it, which run while `subscribe` is in use.

    A failing task is retried with exponential backoff; readers receive nothing meanwhile.
    """

    def __init__(self, capacity: int) -> None:
        self.journal: Journal[Item] = Journal(capacity)
        self._readers = 0
        self._tasks: list[asyncio.Task[None]] = []

    @contextmanager
    def subscribe(self, lingering: float = 0.0) -> Iterator[None]:
        """Register a reader.

        `lingering`: seconds for which the feed stays open after its last reader has left.
        """
        self._readers += 1
        try:
            if not self._tasks and not self.is_closed:
                self._tasks = [asyncio.create_task(self._run_with_retries(work)) for work in self._workers()]
            yield
        finally:
            self._readers -= 1
            if lingering:
                asyncio.get_running_loop().call_later(lingering, self._close_if_idle)
            else:
                self._close_if_idle()

    @property
    def is_idle(self) -> bool:
        return not self._readers

    @property
    def is_closed(self) -> bool:
        """True when the feed produces no more events."""
        return self.journal.closed

    def close(self) -> None:
        """End the readers and the tasks."""
        self.journal.close()
        for task in self._tasks:
            task.cancel()

    def _close_if_idle(self) -> None:
        if self.is_idle:
            self.close()

    def _workers(self) -> Sequence[Callable[[], Awaitable[None]]]:
        """Return the tasks of the feed."""
        raise NotImplementedError

    def _on_gone(self) -> None:
        """Handle the deletion of the watched object."""
        self.journal.close()

    async def _run_with_retries(self, work: Callable[[], Awaitable[None]]) -> None:
        backoff = Backoff(_INITIAL_BACKOFF_SECONDS, _MAX_BACKOFF_SECONDS, jitter=0.0)
        while not self.is_closed:
            started = asyncio.get_running_loop().time()
            try:
                await work()
                return
            except JobNotFound:
                self._on_gone()
                return
            except KubealignError as error:
                log.warning("a stream is retried: %s", error)
            except Exception:
                log.exception("a stream failed")
                self.journal.close()
                return
            if asyncio.get_running_loop().time() - started > _MAX_BACKOFF_SECONDS:
                backoff.reset()
            await asyncio.sleep(backoff.next_delay())
