"""Progress of the running jobs' drivers, polled from Redis for all jobs at once."""

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

#: Phases in which a driver may report progress.
SPEAKING = ("Starting", "Running", "Suspending")
#: Names of metrics, see docs/metrics.md.
_REWARD, _KL = "reward/mean", "kl/reference"


class NoProgress:
    """The progress of a platform without Redis."""

    def of(self, uid: str) -> Progress | None:
        return None

    async def refresh(self, key: Key, uid: str) -> None:
        return

    async def run(self) -> None:
        return


class ProgressReader:
    """Polls progress. `on_change` is called for a job with new progress, at most once per `seconds`."""

    def __init__(
        self, redis: RedisServer, jobs: Jobs, changed: Callable[[Key], None], seconds: float
    ) -> None:
        self._redis = redis
        self._jobs = jobs
        self._changed = changed
        self._seconds = seconds
        self._held: dict[str, Progress] = {}

    def of(self, uid: str) -> Progress | None:
        """Return the last progress; None: none yet."""
        return self._held.get(uid)

    async def refresh(self, key: Key, uid: str) -> None:
        """Read the final progress of a job whose driver has ended. Without Redis nothing changes."""
        try:
            replies = await self._redis.said([names.redis_prefix(key.namespace, key.name)])
        except RedisAway as error:
            log.debug("%s", error)
            return
        progress = understood(*replies[0])
        if progress is not None:
            self._held[uid] = progress

    async def run(self) -> None:
        """Poll until cancelled. RedisUserSync logs that Redis is unavailable."""
        while True:
            try:
                await self.read()
            except RedisAway as error:
                log.debug("%s", error)
            await asyncio.sleep(self._seconds)

    async def read(self) -> None:
        """Poll once.

        Raises:
            RedisUnavailable: Redis does not answer.
        """
        active = [(key, job.uid) for key, job in self._jobs.items() if job.phase in SPEAKING]
        prefixes = [names.redis_prefix(key.namespace, key.name) for key, _ in active]
        replies = await self._redis.said(prefixes)
        present = {job.uid for _, job in self._jobs.items()}
        for uid in self._held.keys() - present:
            del self._held[uid]
        for (key, uid), (status, entries) in zip(active, replies, strict=True):
            progress = understood(status, entries)
            if progress is not None and progress != self._held.get(uid):
                self._held[uid] = progress
                self._changed(key)


def understood(status: dict[str, str], entries: list[tuple[str, dict[str, str]]]) -> Progress | None:
    """Parse the status hash and the metrics entries, newest first; None: the driver has not reported yet."""
    if not status:
        return None
    metrics: dict[str, Any] = {}
    for _, entry in reversed(entries):
        metrics |= _figures(entry.get("json", ""))
    return Progress(
        step=_whole(status.get("step")),
        max_steps=_whole(status.get("max_steps")),
        weight_version=_whole(status.get("weight_version")),
        reward=number(metrics.get(_REWARD)),
        kl=number(metrics.get(_KL)),
        waiting_for=status.get("waiting_for", ""),
    )


def _figures(text: str) -> dict[str, Any]:
    try:
        metrics = json.loads(text)
    except ValueError:
        return {}
    return metrics if isinstance(metrics, dict) else {}


def _whole(text: str | None) -> int | None:
    try:
        return int(float(text or ""))
    except (ValueError, OverflowError):
        return None
