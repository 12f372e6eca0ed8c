"""Quota of the platform's Redis: a job that stores too much loses its metrics, so that others keep theirs."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from kubealign.kube.api import Json
from kubealign_operator.controller.config import RedisQuota
from kubealign_operator.controller.kube.ownership import JobKey
from kubealign_operator.controller.platform_redis.server import PlatformRedis, RedisUnavailable
from kubealign_operator.controller.platform_redis.users import RedisUserSync
from kubealign_operator.controller.state.cache import JobStore, WatchedJob
from kubealign_operator.planner.plan import KubeEventType, PlannedEvent

log = logging.getLogger(__name__)

_REASON = "MetricsRemoved"

#: Called with (job, events).
Announce = Callable[[Json, tuple[PlannedEvent, ...]], None]


@dataclass
class JobUsage:
    """Keys of a job, and the bytes that they take."""

    keys: int = 0
    bytes: int = 0


class RedisQuotaGuard:
    """Checks the usage of each job in turn.

    The keys of a job over the quota are removed, with an event. A job that is over the quota in the next
    check too loses its user: it writes no more metrics.
    """

    def __init__(
        self,
        redis: PlatformRedis,
        jobs: JobStore,
        users: RedisUserSync,
        announce: Announce,
        quota: RedisQuota,
    ) -> None:
        self._redis = redis
        self._jobs = jobs
        self._users = users
        self._announce = announce
        self._quota = quota
        #: uids of the jobs that were over the quota in the last check.
        self._exceeding: set[str] = set()

    async def run(self) -> None:
        """Check until cancelled."""
        while True:
            try:
                await self.check()
            except RedisUnavailable as error:
                log.debug("%s", error)
            await asyncio.sleep(self._quota.interval_seconds)

    async def check(self) -> None:
        """Check once.

        Raises:
            RedisUnavailable: Redis does not answer.
        """
        usages = await self._measure()
        exceeding = set()
        for key, usage in usages.items():
            if not self._exceeds(usage):
                continue
            job = self._jobs.get(key)
            if job is not None:
                exceeding.add(job.uid)
                await self._enforce(key, job, usage)
        self._exceeding = exceeding

    async def _measure(self) -> dict[JobKey, JobUsage]:
        """Return the usage of each job; that of a job over the quota is not measured further."""
        usages: dict[JobKey, JobUsage] = {}
        async for keys_by_job in self._redis.scan_jobs():
            for key, keys in keys_by_job.items():
                usage = usages.setdefault(key, JobUsage())
                if self._exceeds(usage):
                    continue
                usage.keys += len(keys)
                if not self._exceeds(usage):
                    usage.bytes += await self._redis.memory_usage(keys)
        return usages

    def _exceeds(self, usage: JobUsage) -> bool:
        return usage.keys > self._quota.max_keys or usage.bytes > self._quota.max_bytes

    async def _enforce(self, key: JobKey, job: WatchedJob, usage: JobUsage) -> None:
        is_repeated = job.uid in self._exceeding
        if is_repeated:
            await self._users.suspend_user(job.uid)
        await self._redis.remove_keys(self._redis.prefix_of(key))
        message = (
            f"the job's metrics in Redis were removed: at least {usage.keys} keys of {usage.bytes} bytes "
            f"exceed {self._quota.max_keys} keys or {self._quota.max_bytes} bytes; "
            "metrics.jsonl is unaffected"
        )
        if is_repeated:
            message += ". It stores no more metrics in Redis, because it did so again"
        log.warning("%s: %s", key, message, extra={"job": str(key)})
        self._announce(job.resource, (PlannedEvent(KubeEventType.WARNING, _REASON, message),))
