"""Progress of the running jobs' drivers, polled from Redis for all jobs at once."""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

from kubealign.bounded_json import BoundedJsonError, parse_bounded_json
from kubealign_operator.controller.kube.ownership import JobKey
from kubealign_operator.controller.platform_redis.replies import ProgressReply, UnreadableProgress
from kubealign_operator.controller.platform_redis.server import PlatformRedis, RedisUnavailable
from kubealign_operator.controller.state.cache import JobStore
from kubealign_operator.kube_views.lenient_json import number
from kubealign_operator.kube_views.observed_job import DriverProgress

log = logging.getLogger(__name__)

#: Phases in which a driver may report progress.
ACTIVE_PHASES = ("Starting", "Running", "Suspending")
#: Names of metrics, see docs/metrics.md.
_REWARD, _KL = "reward/mean", "kl/reference"
_UNREADABLE_SECONDS = 60.0
#: Largest value of the CRD's int64 fields.
_MAX_INTEGER = 2**63 - 1
# Bytes of a status field.
_MAX_TEXT = 512
_MAX_JSON_BYTES, _MAX_JSON_DEPTH = 256 * 2**10, 8


class NoProgress:
    """The progress of a platform without Redis."""

    def get(self, uid: str) -> DriverProgress | None:
        return None

    async def refresh(self, key: JobKey, uid: str) -> None:
        return

    async def run(self) -> None:
        return


class ProgressReader:
    """Polls progress. `on_change` is called for a job with new progress, at most once per `seconds`.

    A job whose keys cannot be read keeps its last progress, and is read again after a minute.
    """

    def __init__(
        self, redis: PlatformRedis, jobs: JobStore, on_change: Callable[[JobKey], None], seconds: float
    ) -> None:
        self._redis = redis
        self._jobs = jobs
        self._on_change = on_change
        self._seconds = seconds
        self._progress: dict[str, DriverProgress] = {}
        #: uid of a job whose keys cannot be read -> time of the next read.
        self._retry_at: dict[str, float] = {}

    def get(self, uid: str) -> DriverProgress | None:
        """Return the last progress; None: none yet."""
        return self._progress.get(uid)

    async def refresh(self, key: JobKey, uid: str) -> None:
        """Read the final progress of a job whose driver has ended.

        Nothing changes without Redis, or if the job's keys cannot be read.
        """
        try:
            [reply] = await self._redis.read_progress([self._redis.prefix_of(key)])
        except RedisUnavailable as error:
            log.debug("%s", error)
            return
        self._record(key, uid, reply)

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
        now = time.monotonic()
        present = {job.uid for _, job in self._jobs.items()}
        for by_uid in (self._progress, self._retry_at):
            for uid in by_uid.keys() - present:
                del by_uid[uid]
        active = [
            (key, job.uid)
            for key, job in self._jobs.items()
            if job.phase in ACTIVE_PHASES
            and not job.is_dispatched
            and self._retry_at.get(job.uid, now) <= now
        ]
        replies = await self._redis.read_progress([self._redis.prefix_of(key) for key, _ in active])
        for (key, uid), reply in zip(active, replies, strict=True):
            if self._record(key, uid, reply):
                self._on_change(key)

    def _record(self, key: JobKey, uid: str, reply: ProgressReply | UnreadableProgress) -> bool:
        """Store the progress of a job. Returns True if it has changed."""
        if isinstance(reply, UnreadableProgress):
            if uid not in self._retry_at:
                log.warning(
                    "the progress of %s cannot be read: %s", key, reply.reason, extra={"job": str(key)}
                )
            self._retry_at[uid] = time.monotonic() + _UNREADABLE_SECONDS
            return False
        self._retry_at.pop(uid, None)
        progress = parse_progress(reply)
        if progress is None or progress == self._progress.get(uid):
            return False
        self._progress[uid] = progress
        return True


def parse_progress(reply: ProgressReply) -> DriverProgress | None:
    """Parse what a driver has reported; None: nothing yet. A malformed value counts as not reported."""
    status = {name: value[:_MAX_TEXT].decode(errors="replace") for name, value in reply.status.items()}
    if not status:
        return None
    metrics: dict[str, Any] = {}
    for document in reversed(reply.metrics):
        metrics |= _parse_metrics(document)
    return DriverProgress(
        step=_parse_int(status.get("step")),
        # 0: not known yet.
        max_steps=_parse_int(status.get("max_steps")) or None,
        weight_version=_parse_int(status.get("weight_version")),
        reward=number(metrics.get(_REWARD)),
        kl=number(metrics.get(_KL)),
        waiting_for=status.get("waiting_for", ""),
    )


def _parse_metrics(document: bytes) -> dict[str, Any]:
    try:
        metrics = parse_bounded_json(document, _MAX_JSON_BYTES, _MAX_JSON_DEPTH)
    except BoundedJsonError:
        return {}
    return metrics if isinstance(metrics, dict) else {}


def _parse_int(text: str | None) -> int | None:
    try:
        value = int(float(text or ""))
    except (ValueError, OverflowError):
        return None
    return value if 0 <= value <= _MAX_INTEGER else None
