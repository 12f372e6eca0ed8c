"""Redis connections that read replies up to a size: a key of an untrusted writer cannot exhaust memory.

Redis has no command that tells the size of a stream entry before it is read, and a key can change between
two commands. The size of each part of a reply, however, is announced before the part: the connection is
closed before a part that exceeds the limit is read. This holds for every command and every Redis version.
"""

from functools import partial
from typing import Any

from redis._parsers import _AsyncRESP2Parser
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

#: Memory that each part of a reply takes in addition to its bytes.
_PART_BYTES = 64


class ReplyTooLarge(RedisError):
    """The reply exceeds the limit of the connection, which was closed."""


def bounded_redis(max_reply_bytes: int, *, timeout_seconds: float, retries: int, **options: Any) -> Redis:
    """Return a client that raises ReplyTooLarge for a reply of more than `max_reply_bytes`.

    Replies are bytes: what an untrusted writer has stored need not be UTF-8. The size counts the bytes of
    each part and 64 for the object that holds it.

    Args:
        max_reply_bytes: The largest reply to one command.
        timeout_seconds: Timeout of connecting, and of each reply.
        retries: Repetitions of a command after a lost connection.
        options: Keyword arguments of the client: host, port, username, password, ssl, ...
    """
    client = Redis(
        **options,
        retry=Retry(NoBackoff(), retries),
        socket_timeout=timeout_seconds,
        socket_connect_timeout=timeout_seconds,
        decode_responses=False,
        protocol=2,
        # No CLIENT SETINFO, which a job's user may not send.
        driver_info=None,
    )
    parser = partial(_BoundedReplyParser, max_reply_bytes=max_reply_bytes)
    client.connection_pool.connection_kwargs["parser_class"] = parser
    return client


class _BoundedReplyParser(_AsyncRESP2Parser):
    """Parser of RESP2 (https://redis.io/docs/latest/develop/reference/protocol-spec/) with a size limit.

    A reply that is too large is not read to its end: the client closes the connection.
    """

    def __init__(self, socket_read_size: int, max_reply_bytes: int) -> None:
        super().__init__(socket_read_size)
        self._max_reply_bytes = max_reply_bytes
        self._remaining = max_reply_bytes

    async def read_response(self, disable_decoding: bool = False) -> Any:
        self._remaining = self._max_reply_bytes
        return await super().read_response(disable_decoding)

    async def _read(self, length: int) -> bytes:
        self._charge(length)
        data: bytes = await super()._read(length)
        return data

    async def _readline(self) -> bytes:
        self._charge(0)
        line: bytes = await super()._readline()
        return line

    def _charge(self, size: int) -> None:
        self._remaining -= size + _PART_BYTES
        if self._remaining < 0:
            raise ReplyTooLarge(f"the reply exceeds {self._max_reply_bytes} bytes")
