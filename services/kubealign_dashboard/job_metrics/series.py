"""Series of one job, from its status and its newest telemetry."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kubealign.client.records import JobRef
from kubealign.read_model import StepMetrics
from kubealign.spec.status import JobPhase
from kubealign_dashboard.cluster.cached_job import CachedJob
from kubealign_dashboard.cluster.redis_telemetry import JobSummary
from kubealign_dashboard.job_metrics import families
from kubealign_dashboard.job_metrics.families import MetricFamily

#: Phase of a job without a status.
_UNSEEN = "Unseen"
_MILLISECONDS = 1000
#: The year 5138: a later time was chosen by the job.
_MAX_TIME = 1e11
# Bytes of a line of the page in addition to its names: the labels' syntax and the value.
_LINE_BYTES = 64


@dataclass(frozen=True, slots=True)
class Series:
    """A sample of a family. `label`: value of the family's own label; unused if it has none."""

    family: MetricFamily
    value: float
    label: str = ""

    def size(self, ref: JobRef) -> int:
        """Return the approximate number of bytes of its line in a page, not too low."""
        names = (self.family.name, self.family.label, self.label, ref.namespace, ref.name)
        return sum(len(name.encode()) for name in names) + _LINE_BYTES


def telemetry_series(job: CachedJob, summary: JobSummary) -> list[Series]:
    """Return the series of a job's newest telemetry: a bounded number, whatever the job has stored."""
    values = {} if summary.step is None else summary.step.values
    return [*_progress_series(job, summary), *_step_series(values)]


def status_series(job: CachedJob, now: float) -> Iterator[Series]:
    """Yield the series of a job's status at a time, in seconds since the epoch."""
    activity = job.activity
    yield Series(families.INFO, 1, job.algorithm)
    yield Series(families.PHASE, 1, job.phase or _UNSEEN)
    yield Series(families.RESTARTS, activity.restarts)
    current = 0.0 if activity.active_since is None else max(0.0, now - activity.active_since)
    yield Series(families.ACTIVE_SECONDS, activity.active_seconds + current)
    # The keys are unique: a page with two equal series is rejected as a whole.
    for role in {role.name: role for role in activity.roles}.values():
        yield Series(families.ROLE_REPLICAS, role.replicas, role.name)
        yield Series(families.ROLE_READY, role.ready, role.name)


def _progress_series(job: CachedJob, summary: JobSummary) -> Iterator[Series]:
    progress, started = summary.progress, 0.0
    if progress is not None:
        started = progress.started_at
        yield Series(families.STEP, progress.step)
        yield Series(families.WEIGHT_VERSION, progress.weight_version)
        if progress.max_steps:
            yield Series(families.MAX_STEPS, progress.max_steps)
    moment = max(started, _entry_time(summary.step))
    if 0 < moment < _MAX_TIME:
        yield Series(families.PROGRESS_TIME, moment)
    if job.phase == JobPhase.RUNNING:
        is_alive = bool(summary.driver) and "unreadable" not in summary.driver
        yield Series(families.DRIVER_UP, float(is_alive))


def _step_series(values: Mapping[str, Any]) -> Iterator[Series]:
    for metric, (family, label) in families.STEP_METRICS.items():
        if metric in values:
            yield Series(family, values[metric], label)
    for named in families.NAMED_FAMILIES:
        names = {
            match[1]: value
            for metric, value in values.items()
            if (match := named.pattern.fullmatch(metric)) and families.NAME_PATTERN.fullmatch(match[1])
        }
        for name in sorted(names)[: families.MAX_NAMES]:
            yield Series(named, names[name], name)


def _entry_time(step: StepMetrics | None) -> float:
    """Return the time at which Redis has stored a step; 0: unknown."""
    milliseconds = "" if step is None else step.entry.partition("-")[0]
    is_number = milliseconds.isascii() and milliseconds.isdigit()
    return int(milliseconds) / _MILLISECONDS if is_number else 0.0
