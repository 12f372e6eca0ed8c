"""Detects streams that a server has lost, by the creation times of the streams."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any


class Losses:
    """Records the creation time of each subject's stream and notifies followers when it changes."""

    def __init__(self) -> None:
        self._births: dict[str, Any] = {}
        self._counts: Counter[str] = Counter()
        self._change = asyncio.Condition()
        self._over = False

    async def born(self, subject: str, birth: object) -> None:
        """Record the creation time of the subject's present stream."""
        before = self._births.setdefault(subject, birth)
        if birth != before:
            self._births[subject] = birth
            await self.lost(subject)

    async def lost(self, subject: str) -> None:
        """Record that the stored messages of the subject were lost."""
        self._counts[subject] += 1
        async with self._change:
            self._change.notify_all()

    def count(self, subject: str) -> int:
        """Return how often the subject was lost."""
        return self._counts[subject]

    async def end(self) -> None:
        """End all followers."""
        self._over = True
        async with self._change:
            self._change.notify_all()

    def follow(self, subject: str) -> AsyncIterator[None]:
        """Yield once for the losses since the last item, or since this call."""
        return self._after(subject, self._counts[subject])

    async def _after(self, subject: str, seen: int) -> AsyncIterator[None]:
        while True:
            async with self._change:
                while not self._over and self._counts[subject] == seen:
                    await self._change.wait()
            if self._over:
                return
            seen = self._counts[subject]
            yield
