"""Reads the newest telemetry of the active jobs, and renders it for Prometheus.

Jobs choose what they store: each read is bounded, a job that cannot be read loses its own series only, and
the page has a limit of its own. Concurrent and repeated scrapes share one reading.
"""

import asyncio
import logging
import math
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from kubealign.client.records import JobRef
from kubealign.errors import MetricsUnreadable, Unavailable
from kubealign.spec.status import JobPhase
from kubealign_dashboard.access import Caller
from kubealign_dashboard.cluster.cached_job import CachedJob
from kubealign_dashboard.cluster.redis_telemetry import JobSummary
from kubealign_dashboard.cluster.ttl_cache import TTLCache
from kubealign_dashboard.job_metrics.families import FAMILIES, MetricFamily
from kubealign_dashboard.job_metrics.series import Series, status_series, telemetry_series

log = logging.getLogger(__name__)

#: Seconds for which an ended job keeps its series, so that its last step is scraped.
ENDED_SECONDS = 300.0
#: Largest page, in bytes: some three thousand jobs.
MAX_PAGE_BYTES = 16 * 2**20
# Prometheus waits ten seconds for a page.
_READ_SECONDS = 6.0
_PAGE_SECONDS = 5.0
_UNREADABLE_SECONDS = 60.0
# A job that could not be read in time keeps its last series for this long.
_KEPT_SECONDS = 60.0
_MAX_CONCURRENT_READS = 32
#: Phases whose driver reports to Redis.
_REPORTING_PHASES = (JobPhase.RUNNING, JobPhase.SUSPENDING, JobPhase.SUCCEEDED, JobPhase.FAILED)
_FINAL_PHASES = (JobPhase.SUCCEEDED, JobPhase.FAILED)
#: Metrics of the page itself.
PAGE_JOBS = "kubealign_job_metrics_jobs"
REDIS_UP = "kubealign_job_metrics_redis_up"
_STATES = ("exported", "unreadable", "omitted")


class SummarySource(Protocol):
    """Source of the newest telemetry of a job."""

    async def summary(self, ref: JobRef) -> JobSummary:
        """Return the newest telemetry. Raises Unavailable and MetricsUnreadable."""


@dataclass(frozen=True)
class _Reading:
    """The series of one job's telemetry, and the time of their reading by the monotonic clock."""

    series: Sequence[Series]
    read_at: float


class JobMetricsExporter:
    """Exports the metrics of all active jobs.

    Args:
        jobs: Returns all jobs.
        telemetry: Reads the platform's Redis.
        authorize: Raises Forbidden for a caller that may not scrape.
        max_page_bytes: Limit of a page; jobs that do not fit in it are omitted, the oldest first.
        clock: Seconds since the epoch.
    """

    def __init__(
        self,
        jobs: Callable[[], Sequence[CachedJob]],
        telemetry: SummarySource,
        authorize: Callable[[Caller], Awaitable[None]],
        *,
        max_page_bytes: int = MAX_PAGE_BYTES,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._jobs = jobs
        self._telemetry = telemetry
        self._authorize = authorize
        self._max_page_bytes = max_page_bytes
        self._clock = clock
        self._pages: TTLCache[str, bytes] = TTLCache(1)
        #: uid -> the last reading of the job's telemetry.
        self._readings: dict[str, _Reading] = {}
        #: uid of a job whose keys cannot be read -> time of the next read.
        self._retry_at: dict[str, float] = {}

    async def page(self, caller: Caller) -> bytes:
        """Return the page in Prometheus' text format, at most five seconds old.

        Raises:
            Forbidden: The caller may not scrape.
            Unavailable: The caller's right cannot be reviewed.
        """
        await self._authorize(caller)
        return await self._pages.get("", self._render)

    async def _render(self) -> tuple[bytes, float]:
        # The newest first: they are the last to be omitted.
        jobs = sorted(self._active_jobs(), key=lambda job: job.created, reverse=True)
        is_redis_up = await self._read([job for job in jobs if job.phase in _REPORTING_PHASES])
        # In a thread: thousands of series must not delay other requests.
        page = await asyncio.to_thread(self._build_page, jobs, dict(self._readings), is_redis_up)
        return page, _PAGE_SECONDS

    def _active_jobs(self) -> Iterator[CachedJob]:
        oldest_end = self._clock() - ENDED_SECONDS
        for job in self._jobs():
            ended = job.activity.completed_at
            if job.phase not in _FINAL_PHASES or (ended is not None and ended > oldest_end):
                yield job

    async def _read(self, jobs: Sequence[CachedJob]) -> bool:
        """Read the telemetry of these jobs until the deadline, those with the oldest reading first.

        Returns:
            False if Redis did not answer.
        """
        now = time.monotonic()
        uids = {job.uid for job in jobs}
        self._retry_at = {uid: at for uid, at in self._retry_at.items() if uid in uids and at > now}
        self._readings = {
            uid: reading for uid, reading in self._readings.items() if now - reading.read_at < _KEPT_SECONDS
        }
        slots = asyncio.Semaphore(_MAX_CONCURRENT_READS)
        failures: list[Unavailable] = []

        async def read(job: CachedJob) -> None:
            async with slots:
                if failures:
                    return
                try:
                    summary = await self._telemetry.summary(job.ref)
                except MetricsUnreadable as error:
                    log.warning("%s: %s", job.ref, error, extra={"job": str(job.ref)})
                    self._retry_at[job.uid] = now + _UNREADABLE_SECONDS
                    self._readings.pop(job.uid, None)
                except Unavailable as error:
                    failures.append(error)
                else:
                    self._readings[job.uid] = _Reading(telemetry_series(job, summary), time.monotonic())

        readable = [job for job in jobs if job.uid not in self._retry_at]
        await _run_until(_READ_SECONDS, [read(job) for job in sorted(readable, key=self._read_time)])
        if failures:
            log.warning("jobs have no new metrics: %s", failures[0])
        return not failures

    def _read_time(self, job: CachedJob) -> float:
        """Return the time of a job's last reading; minus infinity: there is none."""
        reading = self._readings.get(job.uid)
        return -math.inf if reading is None else reading.read_at

    def _build_page(
        self, jobs: Sequence[CachedJob], readings: Mapping[str, _Reading], is_redis_up: bool
    ) -> bytes:
        builder = _PageBuilder(self._max_page_bytes)
        states: Counter[str] = Counter()
        now = self._clock()
        for job in jobs:
            reading = readings.get(job.uid)
            is_missing = reading is None and job.phase in _REPORTING_PHASES
            series = [*status_series(job, now), *(() if reading is None else reading.series)]
            if not builder.add(job.ref, series):
                states["omitted"] += 1
            elif job.uid in self._retry_at:
                states["unreadable"] += 1
            else:
                states["omitted" if is_missing else "exported"] += 1
        return builder.render(states, is_redis_up=is_redis_up)


class _PageBuilder(Collector):
    """Collects the series of jobs up to a number of bytes."""

    def __init__(self, max_bytes: int) -> None:
        self._left = max_bytes
        self._families = {family.name: _empty_family(family) for family in FAMILIES}
        self._page_families: list[Metric] = []

    def add(self, ref: JobRef, series: Collection[Series]) -> bool:
        """Add all series of a job. Returns False if they do not fit: then none is added."""
        size = sum(item.size(ref) for item in series)
        if size > self._left:
            return False
        self._left -= size
        for item in series:
            labels = [ref.namespace, ref.name, *([item.label] if item.family.label else [])]
            self._families[item.family.name].add_metric(labels, item.value)
        return True

    def render(self, states: Counter[str], *, is_redis_up: bool) -> bytes:
        jobs = GaugeMetricFamily(
            PAGE_JOBS,
            "Active jobs on this page: exported; unreadable, with the series of their status only; omitted, "
            "because they do not fit in the page, or were not read in time.",
            labels=["state"],
        )
        for state in _STATES:
            jobs.add_metric([state], states[state])
        redis = GaugeMetricFamily(REDIS_UP, "1: Redis has answered for this page.", value=float(is_redis_up))
        self._page_families = [jobs, redis]
        registry = CollectorRegistry()
        registry.register(self)
        page: bytes = generate_latest(registry)
        return page

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        yield from self._page_families
        yield from (family for family in self._families.values() if family.samples)


def _empty_family(family: MetricFamily) -> GaugeMetricFamily | CounterMetricFamily:
    labels = ["namespace", "job_name", *([family.label] if family.label else [])]
    make = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
    return make(family.name, family.text, labels=labels)


async def _run_until(seconds: float, reads: Sequence[Awaitable[None]]) -> None:
    """Run these reads concurrently, and cancel those that take longer than `seconds`. Raises their errors."""
    tasks = [asyncio.ensure_future(read) for read in reads]
    if not tasks:
        return
    try:
        done, _ = await asyncio.wait(tasks, timeout=seconds)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    for task in done:
        task.result()
