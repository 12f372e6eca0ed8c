"""Progress of the running jobs' drivers, polled from Redis for all jobs at once."""

import asyncio
import json
import logging
from collections.abc import Callable
from typing import Any

from kubealign_operator import names
from kubealign_operator.controller.kube.ownership import JobKey
from kubealign_operator.controller.platform_redis.server import PlatformRedis, RedisUnavailable
from kubealign_operator.controller.state.cache import JobStore
from kubealign_operator.kube_views.lenient_json import number
from kubealign_operator.kube_views.observed_job import DriverProgress

log = logging.getLogger(__name__)

#: Phases in which a driver may report progress.
ACTIVE_PHASES = ("Starting", "Running", "Suspending")
#: Names of metrics, see docs/metrics.md.
_REWARD, _KL = "reward/mean", "kl/reference"


class NoProgress:
    """The progress of a platform without Redis."""

    def get(self, uid: str) -> DriverProgress | None:
        return None

    async def refresh(self, key: JobKey, uid: str) -> None:
        return

    async def run(self) -> None:
        return


class ProgressReader:
    """Polls progress. `on_change` is called for a job with new progress, at most once per `seconds`."""

    def __init__(
        self, redis: PlatformRedis, jobs: JobStore, on_change: Callable[[JobKey], None], seconds: float
    ) -> None:
        self._redis = redis
        self._jobs = jobs
        self._on_change = on_change
        self._seconds = seconds
        self._progress: dict[str, DriverProgress] = {}

    def get(self, uid: str) -> DriverProgress | None:
        """Return the last progress; None: none yet."""
        return self._progress.get(uid)

    async def refresh(self, key: JobKey, uid: str) -> None:
        """Read the final progress of a job whose driver has ended. Without Redis nothing changes."""
        try:
            replies = await self._redis.read_progress([names.redis_prefix(key.namespace, key.name)])
        except RedisUnavailable as error:
            log.debug("%s", error)
            return
        progress = parse_progress(*replies[0])
        if progress is not None:
            self._progress[uid] = progress

    async def run(self) -> None:
        """Poll until cancelled. RedisUserSync logs that Redis is unavailable."""
        while True:
            try:
                await self.poll()
            except RedisUnavailable as error:
                log.debug("%s", error)
            await asyncio.sleep(self._seconds)

    async def poll(self) -> None:
        """Poll once.

        Raises:
            RedisUnavailable: Redis does not answer.
        """
        active = [(key, job.uid) for key, job in self._jobs.items() if job.phase in ACTIVE_PHASES]
        prefixes = [names.redis_prefix(key.namespace, key.name) for key, _ in active]
        replies = await self._redis.read_progress(prefixes)
        present = {job.uid for _, job in self._jobs.items()}
        for uid in self._progress.keys() - present:
            del self._progress[uid]
        for (key, uid), (status, entries) in zip(active, replies, strict=True):
            progress = parse_progress(status, entries)
            if progress is not None and progress != self._progress.get(uid):
                self._progress[uid] = progress
                self._on_change(key)


def parse_progress(
    status: dict[str, str], entries: list[tuple[str, dict[str, str]]]
) -> DriverProgress | None:
    """Parse the status hash and the metrics entries, newest first; None: the driver has not reported yet."""
    if not status:
        return None
    metrics: dict[str, Any] = {}
    for _, entry in reversed(entries):
        metrics |= _parse_metrics(entry.get("json", ""))
    return DriverProgress(
        step=_parse_int(status.get("step")),
        # 0: not known yet.
        max_steps=_parse_int(status.get("max_steps")) or None,
        weight_version=_parse_int(status.get("weight_version")),
        reward=number(metrics.get(_REWARD)),
        kl=number(metrics.get(_KL)),
        waiting_for=status.get("waiting_for", ""),
    )


def _parse_metrics(text: str) -> dict[str, Any]:
    try:
        metrics = json.loads(text)
    except ValueError:
        return {}
    return metrics if isinstance(metrics, dict) else {}


def _parse_int(text: str | None) -> int | None:
    try:
        return int(float(text or ""))
    except (ValueError, OverflowError):
        return None
