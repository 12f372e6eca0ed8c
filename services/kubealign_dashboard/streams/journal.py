"""The last events of a feed: one copy, which every reader consumes at its own pace."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import Generic, TypeVar

Item = TypeVar("Item")


class ReaderFellBehind(Exception):
    """The reader's next event is no longer kept: it must start over from its cursor."""


class Journal(Generic[Item]):
    """A bounded journal: a slow reader falls behind and delays nobody."""

    def __init__(self, capacity: int) -> None:
        self._items: deque[Item] = deque(maxlen=capacity)
        self._has_news = asyncio.Event()
        #: True when no more items follow.
        self.closed = False
        #: Position of the next item, from 0.
        self.position = 0

    def append(self, item: Item) -> None:
        self._items.append(item)
        self.position += 1
        self._wake()

    def close(self) -> None:
        """End the journal."""
        self.closed = True
        self._wake()

    def contains(self, position: int) -> bool:
        """Return True when all events from this position on are kept."""
        return self.position - len(self._items) <= position <= self.position

    async def follow(self, position: int) -> AsyncIterator[tuple[int, Item]]:
        """Yield (next position, item) from this position on, until the journal is closed.

        Raises:
            ReaderFellBehind: The reader was too slow.
        """
        while True:
            while position < self.position:
                if not self.contains(position):
                    raise ReaderFellBehind
                item = self._items[position - self.position]
                position += 1
                yield position, item
            if self.closed:
                return
            await self._has_news.wait()

    def _wake(self) -> None:
        # Wakes all current waiters; later waiters use the new event.
        self._has_news.set()
        self._has_news = asyncio.Event()
