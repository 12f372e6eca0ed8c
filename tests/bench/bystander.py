"""What passes over a running job's bus, seen by a bystander: who served which sample, and when."""

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
    """One sample on the bus. time: time.time()."""

    time: float
    worker: str
    group: str


@contextmanager
def rollouts(run_dir: Path) -> Iterator[list[Served]]:
    """Within the block the list grows by each sample that a worker of the run publishes."""
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
        # Where the server goes, the run has ended.
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
    """The run has ended before the bystander."""


async def _settings(run_dir: Path, done: threading.Event) -> dict[str, Any] | None:
    """The driver's, once they are there; None where the run ends before."""
    deadline = time.monotonic() + _BEGINS_WITHIN_SECONDS
    while not done.is_set() and time.monotonic() < deadline:
        for path in (run_dir / "settings").glob("driver*.json"):
            held: dict[str, Any] = json.loads(path.read_text())
            return held
        await asyncio.sleep(_SECONDS_BETWEEN)
    return None
