"""TCP proxies between the processes of a local run, which delay, cut or silence the traffic of one link.

`install` is called in the runner's process: from then on each process reaches the bus, Redis and its peers
through proxies, which run on a thread of their own. A test controls them with `disturb`.
"""

import asyncio
import json
import os
import threading
import time
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from kubealign.local.runner import role_units
from kubealign.process_settings import ProcessSettings

#: Environment variable with the path of the control file.
ENV_CONTROL = "KUBEALIGN_TEST_LINKS"
_LOOPBACK = "127.0.0.1"
_POLL_SECONDS = 0.05
_CHUNK_BYTES = 1 << 16


class Disturbance(StrEnum):
    """Disturbance of a link.

    DELAY: each chunk is forwarded half a second late. CUT: connections are closed, and new ones too.
    HALF_OPEN: connections stay open and new ones are accepted, but nothing is forwarded.
    """

    DELAY = "delay"
    CUT = "cut"
    HALF_OPEN = "half-open"


_DELAY_SECONDS = 0.5


def disturb(control: Path, process: str, disturbance: Disturbance, seconds: float) -> None:
    """Disturb all links of a process for `seconds` from now on."""
    draft = control.with_name(f".{control.name}")
    draft.write_text(
        json.dumps({"process": process, "disturbance": disturbance, "until": time.time() + seconds})
    )
    draft.replace(control)


def install() -> None:
    """Route the links of all processes that this runner starts through proxies, if a control file is set."""
    control = os.environ.get(ENV_CONTROL)
    if control is None:
        return
    proxies = _Proxies(Path(control))
    build: Callable[..., ProcessSettings] = role_units.build_settings

    def build_with_proxies(*arguments: Any, **options: Any) -> ProcessSettings:
        return proxies.route(build(*arguments, **options))

    role_units.build_settings = build_with_proxies  # type: ignore[attr-defined]


class _Proxies:
    """Proxies of all links, by process and address."""

    def __init__(self, control: Path) -> None:
        self._control = control
        self._loop = asyncio.new_event_loop()
        self._ports: dict[tuple[str, str], int] = {}
        self._connections: dict[str, set[asyncio.Task[None]]] = {}
        self._process, self._disturbance, self._until = "", "", 0.0
        threading.Thread(target=self._run, name="proxies", daemon=True).start()

    def route(self, settings: ProcessSettings) -> ProcessSettings:
        """Return the settings with the addresses of proxies."""

        def proxied(address: str) -> str:
            return f"{_LOOPBACK}:{self._port(settings.name, address)}"

        nats, redis = settings.nats, settings.redis
        bus = f"tls://{proxied(urlsplit(nats.url).netloc)}"
        store = int(proxied(f"{redis.host}:{redis.port}").rpartition(":")[2])
        return settings.model_copy(
            update={
                "peers": {name: proxied(address) for name, address in settings.peers.items()},
                "nats": nats.model_copy(update={"url": bus}),
                "redis": redis.model_copy(update={"port": store}),
            }
        )

    def _port(self, process: str, target: str) -> int:
        if (process, target) not in self._ports:
            listening = asyncio.run_coroutine_threadsafe(self._listen(process, target), self._loop)
            self._ports[process, target] = listening.result(30)
        return self._ports[process, target]

    async def _listen(self, process: str, target: str) -> int:
        connections = self._connections.setdefault(process, set())

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            connections.add(task)
            try:
                await self._forward(process, target, reader, writer)
            except OSError:
                return
            finally:
                connections.discard(task)
                writer.close()

        server = await asyncio.start_server(accept, _LOOPBACK, 0)
        return int(server.sockets[0].getsockname()[1])

    async def _forward(
        self, process: str, target: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if self._state(process) == Disturbance.CUT:
            return
        host, _, port = target.rpartition(":")
        onwards, back = await asyncio.open_connection(host, int(port))
        pumps = [
            asyncio.create_task(self._pump(process, reader, back)),
            asyncio.create_task(self._pump(process, onwards, writer)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            back.close()

    async def _pump(self, process: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while chunk := await reader.read(_CHUNK_BYTES):
            if self._state(process) == Disturbance.DELAY:
                await asyncio.sleep(_DELAY_SECONDS)
            while self._state(process) == Disturbance.HALF_OPEN:  # noqa: ASYNC110 - the state has an end time
                await asyncio.sleep(_POLL_SECONDS)
            writer.write(chunk)
            await writer.drain()

    def _state(self, process: str) -> str:
        return self._disturbance if process == self._process and time.time() < self._until else ""

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._watch())

    async def _watch(self) -> None:
        seen = ""
        while True:
            text = self._control.read_text() if self._control.exists() else ""
            if text != seen:
                seen = text
                order = json.loads(text)
                self._process, self._disturbance = order["process"], order["disturbance"]
                self._until = order["until"]
                if self._disturbance == Disturbance.CUT:
                    for task in list(self._connections.get(self._process, ())):
                        task.cancel()
            await asyncio.sleep(_POLL_SECONDS)
