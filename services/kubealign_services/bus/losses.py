"""Which subjects a server has lost, by the birth of their stores."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any


class Losses:
    """Told when each subject's store was made; tells those who follow when it is another than before."""

    def __init__(self) -> None:
        self._births: dict[str, Any] = {}
        self._counts: Counter[str] = Counter()
        self._change = asyncio.Condition()
        self._over = False

    async def born(self, subject: str, birth: object) -> None:
        """The subject's store, as it is now, was made at that time."""
        before = self._births.setdefault(subject, birth)
        if birth != before:
            self._births[subject] = birth
            await self.lost(subject)

    async def lost(self, subject: str) -> None:
        """What the subject's store held is gone."""
        self._counts[subject] += 1
        async with self._change:
            self._change.notify_all()

    def count(self, subject: str) -> int:
        """How often the subject was lost."""
        return self._counts[subject]

    async def end(self) -> None:
        """Whoever follows has seen the last."""
        self._over = True
        async with self._change:
            self._change.notify_all()

    def follow(self, subject: str) -> AsyncIterator[None]:
        """One item for the losses since the last one, or since this call."""
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
