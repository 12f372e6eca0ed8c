"""Marks the weights of an inference server, so that weights that are lost, or not this worker's, are noticed.

A server that was restarted by its own supervisor answers again, with the weights of its start or none. The
mark is the version label that vLLM and SGLang keep in memory: it is lost with the weights, and another
worker that loads weights replaces it.
"""

import asyncio
from collections.abc import Awaitable, Callable
from secrets import token_hex

from kubealign_services.generation.external.contract import ExternalEngineDied


class WeightMark:
    """The mark of one worker's weights in its server."""

    def __init__(
        self,
        url: str,
        write: Callable[[str], Awaitable[None]],
        read: Callable[[], Awaitable[str]],
    ) -> None:
        """The server has no mark of this worker yet.

        Args:
            url: URL of the server, for errors.
            write: Sets the server's label.
            read: Returns the server's label.
        """
        self._url = url
        self._write = write
        self._read = read
        self._prefix = f"kubealign-{token_hex(8)}"
        self._count = 0
        self._expected: str | None = None
        self._is_updating = False
        self._current: asyncio.Task[None] | None = None
        self._next: asyncio.Task[None] | None = None

    async def begin_update(self) -> None:
        """Mark the weights as incomplete, unless they already are.

        Raises ExternalEngineDied where earlier weights are lost: an update may be to some of them only.
        """
        if self._is_updating:
            return
        if self._expected is not None:
            await self.check()
        self._count += 1
        await self._set(f"{self._prefix}-{self._count}-incomplete")
        self._is_updating = True

    async def finish_update(self) -> None:
        """Mark the weights as complete. Raises ExternalEngineDied where some are lost."""
        await self.check()
        await self._set(f"{self._prefix}-{self._count}")
        self._is_updating = False

    async def _set(self, mark: str) -> None:
        await self._write(mark)
        self._expected = mark

    async def check(self) -> None:
        """Raise ExternalEngineDied where the server has lost the marked weights; it may have none yet."""
        if self._expected is None:
            return
        expected, reported = self._expected, await self._read()
        if reported != expected:
            raise ExternalEngineDied(
                f"the inference server {self._url} has lost the weights {expected} of this worker (it has "
                f"{reported!r}): it was restarted, or another worker or job loads weights into it"
            )

    async def confirm(self) -> None:
        """Check, after a response has arrived, that the marked weights gave it: the label is still there, and
        is lost with the weights.

        Responses that arrive while the server is asked share the next check.
        """
        if self._next is None:
            self._next = asyncio.create_task(self._check_after(self._current))
        await asyncio.shield(self._next)

    async def _check_after(self, current: asyncio.Task[None] | None) -> None:
        if current is not None:
            await asyncio.wait([current])
        self._current, self._next = self._next, None
        await self.check()

    async def close(self) -> None:
        """End checks that are under way."""
        tasks = [task for task in (self._current, self._next) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
