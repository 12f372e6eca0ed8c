"""The last events of a feed: one copy, that every reader goes through at a pace of its own."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import Generic, TypeVar

Item = TypeVar("Item")


class FellBehind(Exception):
    """What a reader wants next is no longer kept: it must begin again from what it has."""


class Journal(Generic[Item]):
    """Bounded, so that a slow reader costs nothing: it is left behind, and nobody waits for it."""

    def __init__(self, kept: int) -> None:
        self._items: deque[Item] = deque(maxlen=kept)
        self._news = asyncio.Event()
        #: Nothing follows any more.
        self.closed = False
        #: The number of the item that comes next, from 0.
        self.position = 0

    def append(self, item: Item) -> None:
        self._items.append(item)
        self.position += 1
        self._wake()

    def close(self) -> None:
        """Nothing follows."""
        self.closed = True
        self._wake()

    def keeps(self, position: int) -> bool:
        """Whether everything from this number on is still here."""
        return self.position - len(self._items) <= position <= self.position

    async def follow(self, position: int) -> AsyncIterator[tuple[int, Item]]:
        """From this number on, each with the number after it, until the journal is closed. Raises
        FellBehind."""
        while True:
            while position < self.position:
                if not self.keeps(position):
                    raise FellBehind
                item = self._items[position - self.position]
                position += 1
                yield position, item
            if self.closed:
                return
            await self._news.wait()

    def _wake(self) -> None:
        # Everybody who waits now is woken; whoever comes later waits for what comes later.
        self._news.set()
        self._news = asyncio.Event()
