"""Persistent connection to the NATS server that reconnects by itself and reports disconnects."""

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from urllib.parse import urlsplit

import nats
import nats.aio.client
import nats.errors

from kubealign.process_settings import NatsAccess, TlsFiles
from kubealign_services.messaging.cancellation import cancel_until_done, run_with_timeout
from kubealign_services.messaging.contract import BusUnavailable

log = logging.getLogger(__name__)

_RETRY_SECONDS = 0.1
_CLOSE_SECONDS = 2
# nats-py waits without a timeout for a flush above this many unsent bytes; messages in flight are limited by
# JetStreamBus instead.
_NEVER_FLUSH_BYTES = 1 << 40
# https://docs.nats.io/reference/reference-protocols/nats-protocol#errors
_REFUSAL = "permissions violation"


class NatsConnection:
    """Connection to the NATS server.

    `connected` is set while the connection is up; `on_disconnect` is called each time it is lost.
    """

    def __init__(
        self, access: NatsAccess, tls: TlsFiles, name: str, on_disconnect: Callable[[], None]
    ) -> None:
        self.address = urlsplit(access.url).netloc
        self.connected = asyncio.Event()
        self.closed = False
        #: Error text of the last operation that the server refused for want of permission; else empty.
        self.refusal = ""
        self._access = access
        self._tls = _ssl_context(tls)
        self._name = name
        self._disconnect_callback = on_disconnect
        self._client: nats.aio.client.Client | None = None
        self._reconnect_task: asyncio.Task[None] | None = None

    @property
    def client(self) -> nats.aio.client.Client:
        """The present NATS client. Raises BusUnavailable when the connection is not open yet, or closed."""
        if self.closed or self._client is None:
            raise BusUnavailable(f"the connection to the bus at {self.address} is closed")
        return self._client

    async def open(self, timeout: float) -> None:
        """Connect. Raises BusUnavailable after `timeout` seconds, with the last errors."""
        failures: list[str] = []
        try:
            await run_with_timeout(timeout, self._connect(failures))
        except TimeoutError:
            reason = ": " + "; ".join(failures[-3:]) if failures else ""
            raise BusUnavailable(
                f"the bus at {self.address} did not accept a connection within {timeout:g} s{reason}"
            ) from None

    async def close(self) -> None:
        self.closed = True
        if self._reconnect_task is not None:
            await cancel_until_done(self._reconnect_task)
        client = self._client
        if client is not None and not client.is_closed:
            try:
                if client.is_connected:
                    # Flush, so that the last acknowledgements are not lost.
                    await client.flush(timeout=_CLOSE_SECONDS)
                else:
                    # nats-py would write unsent data to the lost connection, and fail.
                    client._pending.clear()
                    client._pending_data_size = 0
                async with asyncio.timeout(_CLOSE_SECONDS):
                    await client.close()
            except (nats.errors.Error, OSError) as error:
                log.debug("closing the bus connection failed", extra={"error": _error_text(error)})
        self.connected.clear()

    async def _connect(self, failures: list[str]) -> None:
        while True:
            try:
                client = await nats.connect(
                    self._access.url,
                    name=self._name,
                    user=self._access.user,
                    password=self._access.password,
                    inbox_prefix=self._access.inbox_prefix,
                    tls=self._tls,
                    # The first connection is retried here: nats-py would retry in a loop without a pause.
                    allow_reconnect=True,
                    max_reconnect_attempts=-1,
                    reconnect_time_wait=_RETRY_SECONDS,
                    connect_timeout=2,
                    ping_interval=10,
                    max_outstanding_pings=2,
                    pending_size=_NEVER_FLUSH_BYTES,
                    error_cb=self._error_collector(failures),
                    disconnected_cb=self._on_disconnected,
                    reconnected_cb=self._on_reconnected,
                    closed_cb=self._on_closed,
                )
            except (OSError, nats.errors.Error) as error:
                await self._error_collector(failures)(error)
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            self._client = client
            self.connected.set()
            return

    async def _on_disconnected(self) -> None:
        self.connected.clear()
        if not self.closed:
            log.warning("lost the connection to the bus", extra={"address": self.address})
            reconnecting = asyncio.current_task()
            assert reconnecting is not None
            reconnecting.add_done_callback(self._reconnect_if_abandoned)
        self._disconnect_callback()

    def _reconnect_if_abandoned(self, reconnecting: asyncio.Task[None]) -> None:
        """Connect again when nats-py has given up reconnecting, silently, at an unexpected error."""
        client = self._client
        if self.closed or client is None or client.is_connected or client.is_closed:
            return
        if client._reconnection_task is not reconnecting:
            # The client reconnected and is reconnecting once more.
            return
        cause = None if reconnecting.cancelled() else reconnecting.exception()
        log.warning("the bus client gave up; connecting again", extra={"cause": repr(cause)})
        self._reconnect_task = asyncio.create_task(self._connect(failures=[]))

    async def _on_reconnected(self) -> None:
        log.info("connected to the bus again", extra={"address": self.address})
        self.connected.set()

    async def _on_closed(self) -> None:
        """Connect again unless `close` was called."""
        self.connected.clear()
        self._disconnect_callback()
        if not self.closed and self._client is not None:
            # The server closed it, for example that of a slow consumer: nats-py does not reconnect then.
            log.warning("the bus closed the connection; connecting again", extra={"address": self.address})
            self._reconnect_task = asyncio.create_task(self._connect(failures=[]))

    def _error_collector(self, failures: list[str]) -> Callable[[Exception], Awaitable[None]]:
        """Return an error callback that collects each distinct error once."""

        async def keep(error: Exception) -> None:
            reason = _error_text(error)
            if reason not in failures:
                failures.append(reason)
            if _REFUSAL in reason.lower():
                self.refusal = reason
                log.warning("the bus refused an operation", extra={"error": reason})
            else:
                log.debug("the bus client reports an error", extra={"error": reason})

        return keep


def _error_text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _ssl_context(tls: TlsFiles) -> ssl.SSLContext:
    for path in (tls.ca, tls.certificate, tls.key):
        if not Path(path).is_file():
            raise FileNotFoundError(f"there is no {path}, which the connection to the bus needs")
    context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=str(tls.ca))
    context.load_cert_chain(tls.certificate, tls.key)
    return context
