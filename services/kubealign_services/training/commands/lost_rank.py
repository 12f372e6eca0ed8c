"""The loss of a rank, after which all ranks of its group restart together."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from kubealign_services.runtime.rpc.errors import Unreachable
from kubealign_services.training.commands.rank_group import RankFailed


class LostRank:
    """The first loss of a rank during a command. Created within an event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._failure: asyncio.Future[None] = self._loop.create_future()

    async def wait(self) -> None:
        """Wait until a rank is lost. Raises RankFailed."""
        await self._failure

    @contextmanager
    def reporting(self) -> Iterator[None]:
        """Report a RankFailed of the block to `wait`, and raise Unreachable in its place; on any thread.

        The group restarts, so callers treat it as unreachable already.
        """
        try:
            yield
        except RankFailed as error:
            self._loop.call_soon_threadsafe(self._fail, error)
            raise Unreachable(str(error)) from error

    def _fail(self, error: RankFailed) -> None:
        if not self._failure.done():
            self._failure.set_exception(error)
