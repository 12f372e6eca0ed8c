"""Reconnection to a server that restarts at another address under the same name, as a pod does, with an empty
store.
"""

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kubealign.process_settings import TlsFiles
from kubealign_services.messaging.jetstream.bus import JetStreamBus

pytestmark = pytest.mark.timeout(90, method="signal")

NAME = "nats.kubealign.test"


class Names:
    """Resolves NAME in place of the system's resolver; None when NAME has no address."""

    def __init__(self) -> None:
        self.address: str | None = None
        self.asked = 0
        self._others = socket.getaddrinfo

    def __call__(self, host: Any, *arguments: Any, **options: Any) -> Any:
        if host != NAME:
            return self._others(host, *arguments, **options)
        self.asked += 1
        if self.address is None:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return self._others(self.address, *arguments, **options)


async def test_server_is_reconnected_at_its_new_address(
    make_server: Callable[..., Any],
    driver_tls: TlsFiles,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = Names()
    monkeypatch.setattr(socket, "getaddrinfo", names)
    names.address = "127.0.0.2"
    first = make_server(host="127.0.0.2", name=NAME)
    bus = await JetStreamBus.connect(first.access, driver_tls, name="one", publish_timeout=60.0)
    try:
        await bus.publish("work", b"lost", "1")
        losses = bus.watch_data_loss("work")
        first.kill()
        # The outage outlasts several attempts, each of which fails differently.
        await asyncio.sleep(1.0)
        names.address = None
        asked = names.asked
        await asyncio.sleep(1.0)
        assert names.asked > asked, "it is asked for with each try"
        second = make_server(host="127.0.0.3", name=NAME, port=first.port)
        names.address = "127.0.0.3"
        await bus.publish("work", b"new", "1")
        await asyncio.wait_for(anext(losses), 10)
        (delivery,) = await bus.pull("work", "rollout", 4, 10.0)
        assert delivery.data == b"new"
        second.kill()
    finally:
        await bus.close()
