"""Detects streams that a server has lost, by the creation times of the streams."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any


class StreamLossTracker:
    """Records the creation time of each subject's stream and notifies followers when it changes."""

    def __init__(self) -> None:
        self._created_at: dict[str, Any] = {}
        self._counts: Counter[str] = Counter()
        self._change = asyncio.Condition()
        self._closed = False

    async def record_creation(self, subject: str, birth: object) -> None:
        """Record the creation time of the subject's present stream."""
        before = self._created_at.setdefault(subject, birth)
        if birth != before:
            self._created_at[subject] = birth
            await self.record_loss(subject)

    async def record_loss(self, subject: str) -> None:
        """Record that the stored messages of the subject were lost."""
        self._counts[subject] += 1
        async with self._change:
            self._change.notify_all()

    def count(self, subject: str) -> int:
        """Return how often the subject was lost."""
        return self._counts[subject]

    async def close(self) -> None:
        """End all followers."""
        self._closed = True
        async with self._change:
            self._change.notify_all()

    def follow(self, subject: str) -> AsyncIterator[None]:
        """Yield once for the losses since the last item, or since this call."""
        return self._follow_from(subject, self._counts[subject])

    async def _follow_from(self, subject: str, seen: int) -> AsyncIterator[None]:
        while True:
            async with self._change:
                while not self._closed and self._counts[subject] == seen:
                    await self._change.wait()
            if self._closed:
                return
            seen = self._counts[subject]
            yield
