"""What the drivers say of themselves, read from Redis every few seconds for all running jobs at once."""

import asyncio
import json
import logging
from collections.abc import Callable
from typing import Any

from kubealign_operator.controller.cache import Jobs
from kubealign_operator.controller.redis_server import RedisAway, RedisServer
from kubealign_operator.controller.resources import Key
from kubealign_operator.render import names
from kubealign_operator.render.observed import Progress
from kubealign_operator.render.reading import number

log = logging.getLogger(__name__)

#: Phases in which a driver may say something.
SPEAKING = ("Starting", "Running", "Suspending")
#: Names of the figures in a step's metrics, see docs/metrics.md.
_REWARD, _KL = "reward/mean", "kl/reference"


class NoProgress:
    """Where there is no Redis."""

    def of(self, uid: str) -> Progress | None:
        return None

    async def refresh(self, key: Key, uid: str) -> None:
        return

    async def run(self) -> None:
        return


class ProgressReader:
    """`changed` is called for a job whose driver said something new: at most once each `seconds`."""

    def __init__(
        self, redis: RedisServer, jobs: Jobs, changed: Callable[[Key], None], seconds: float
    ) -> None:
        self._redis = redis
        self._jobs = jobs
        self._changed = changed
        self._seconds = seconds
        self._held: dict[str, Progress] = {}

    def of(self, uid: str) -> Progress | None:
        """What was read last; None: nothing yet."""
        return self._held.get(uid)

    async def refresh(self, key: Key, uid: str) -> None:
        """Read one job's now: its driver has ended, and said its last. Without Redis nothing changes."""
        try:
            said = await self._redis.said([names.redis_prefix(key.namespace, key.name)])
        except RedisAway as error:
            log.debug("%s", error)
            return
        progress = understood(*said[0])
        if progress is not None:
            self._held[uid] = progress

    async def run(self) -> None:
        """Until cancelled. Whoever keeps the users tells that Redis is away."""
        while True:
            try:
                await self.read()
            except RedisAway as error:
                log.debug("%s", error)
            await asyncio.sleep(self._seconds)

    async def read(self) -> None:
        """Once. Raises RedisAway."""
        speaking = [(key, held.uid) for key, held in self._jobs.items() if held.phase in SPEAKING]
        prefixes = [names.redis_prefix(key.namespace, key.name) for key, _ in speaking]
        said = await self._redis.said(prefixes)
        present = {held.uid for _, held in self._jobs.items()}
        for uid in self._held.keys() - present:
            del self._held[uid]
        for (key, uid), (status, entries) in zip(speaking, said, strict=True):
            progress = understood(status, entries)
            if progress is not None and progress != self._held.get(uid):
                self._held[uid] = progress
                self._changed(key)


def understood(status: dict[str, str], entries: list[tuple[str, dict[str, str]]]) -> Progress | None:
    """Of the status hash and the metrics, newest first; None as long as the driver has said nothing."""
    if not status:
        return None
    figures: dict[str, Any] = {}
    for _, entry in reversed(entries):
        figures |= _figures(entry.get("json", ""))
    return Progress(
        step=_whole(status.get("step")),
        max_steps=_whole(status.get("max_steps")),
        weight_version=_whole(status.get("weight_version")),
        reward=number(figures.get(_REWARD)),
        kl=number(figures.get(_KL)),
        waiting_for=status.get("waiting_for", ""),
    )


def _figures(text: str) -> dict[str, Any]:
    try:
        held = json.loads(text)
    except ValueError:
        return {}
    return held if isinstance(held, dict) else {}


def _whole(text: str | None) -> int | None:
    try:
        return int(float(text or ""))
    except (ValueError, OverflowError):
        return None
