"""Observes the message bus of a running job: which worker served which sample, and when."""

import asyncio
import json
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nats

from kubealign.v1 import rollout_pb2

_BEGINS_WITHIN_SECONDS = 300.0
_SECONDS_BETWEEN = 0.1


@dataclass(frozen=True)
class Served:
    """One sample on the bus. time: seconds since the epoch."""

    time: float
    worker: str
    group: str


@contextmanager
def rollouts(run_dir: Path) -> Iterator[list[Served]]:
    """Yield a list to which every sample that a worker of the run publishes is appended."""
    seen: list[Served] = []
    done = threading.Event()
    thread = threading.Thread(
        target=lambda: asyncio.run(_listen(run_dir, seen, done)), name="bystander", daemon=True
    )
    thread.start()
    try:
        yield seen
    finally:
        done.set()
        thread.join(30)


async def _listen(run_dir: Path, seen: list[Served], done: threading.Event) -> None:
    settings = await _settings(run_dir, done)
    if settings is None:
        return
    access, tls = settings["nats"], settings["tls"]
    context = ssl.create_default_context(cafile=tls["ca"])
    context.load_cert_chain(tls["certificate"], tls["key"])
    client = await nats.connect(
        access["url"],
        user=access["user"],
        password=access["password"],
        tls=context,
        name="bystander",
        # The server ends only with the run.
        allow_reconnect=False,
        error_cb=_ended,
    )

    async def take(message: Any) -> None:
        rollout = rollout_pb2.Rollout.FromString(message.data)
        seen.append(Served(time.time(), rollout.worker, rollout.group_id))

    await client.subscribe("rollouts", cb=take)
    await asyncio.to_thread(done.wait)
    if not client.is_closed:
        await client.close()


async def _ended(_: Exception) -> None:
    """Ignore errors: the run may end before the observer."""


async def _settings(run_dir: Path, done: threading.Event) -> dict[str, Any] | None:
    """Return the driver's settings once they are written; None if the run ends before."""
    deadline = time.monotonic() + _BEGINS_WITHIN_SECONDS
    while not done.is_set() and time.monotonic() < deadline:
        for path in (run_dir / "settings").glob("driver*.json"):
            settings: dict[str, Any] = json.loads(path.read_text())
            return settings
        await asyncio.sleep(_SECONDS_BETWEEN)
    return None
