"""Requests that all kinds of inference servers share."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from kubealign_services.generation.external.openai.connection import ServerConnection, ServerError
from kubealign_services.generation.external.openai.responses import MODELS_PATH, select_model

#: Seconds for the blocks of cancelled requests to be freed.
FREE_SECONDS = 30.0
_FREE_POLL_SECONDS = 0.05


@dataclass(frozen=True)
class ServerAccess:
    """Access of one worker to its server.

    Args:
        name: Name of the served model; None: the only one.
        vocabulary: Number of token ids.
        start_seconds: Time for the server to answer for the first time.
        before_retry: See `ServerConnection.request`.
    """

    connection: ServerConnection
    name: str | None
    vocabulary: int
    start_seconds: float
    before_retry: Callable[[], Awaitable[None]]

    async def served_model(self) -> Mapping[str, Any]:
        """Return the entry of the served model, once the server answers. Raises as `select_model`."""
        listing = await self.connection.request(MODELS_PATH, outage_seconds=self.start_seconds)
        return select_model(listing, self.name)

    async def generate(self, path: str, body: Mapping[str, Any]) -> Any:
        """Return the answer to a generating request."""
        return await self.connection.request(path, body, generates=True, before_retry=self.before_retry)

    async def drop_prefixes(self, path: str, attempt: Callable[[], Awaitable[str | None]]) -> None:
        """Repeat an attempt to drop the cached prefixes, which fails while requests use them.

        Args:
            path: Path of the request, for the error.
            attempt: Returns None, or the reason why requests prevent it.

        Raises ServerError, with the last reason, where requests go on beyond the drain.
        """
        reason: str | None = None
        try:
            async with asyncio.timeout(FREE_SECONDS):
                while True:
                    reason = await attempt()
                    if reason is None:
                        return
                    await asyncio.sleep(_FREE_POLL_SECONDS)
        except TimeoutError as error:
            text = f"requests of others used the cache for {FREE_SECONDS:g} s"
            raise ServerError(path, HTTPStatus.CONFLICT, f"{text}: {reason}" if reason else text) from error
