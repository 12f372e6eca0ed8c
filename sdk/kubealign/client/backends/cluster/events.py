"""Kubernetes events of a job and its pods. Pure."""

import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from pydantic import ValidationError

from kubealign.client.records import JobEvent, JobRecord
from kubealign.labels import EVENT_CONTROLLER
from kubealign.process_settings import Role
from kubealign.role_specs import ROLE_SPECS
from kubealign.roles import roles

Json = Mapping[str, Any]

#: Matched by pattern, because workers added while the job ran are not in the spec.
_ROLLOUT_NAME = re.compile(rf"{Role.ROLLOUT}-\d+")
_ATTEMPT = re.compile(r"-\d+$", re.ASCII)
#: Processes of every job in a cluster, where Redis belongs to the platform; they are named like their roles.
_SINGLE_PROCESSES = frozenset(
    role.name for role in ROLE_SPECS.values() if not role.is_worker and role.certificate is not None
)


def to_job_events(items: Iterable[Json], job: JobRecord) -> list[JobEvent]:
    """Return the events, oldest first; the message of a pod's event begins with the pod's process name.

    Events older than the job belong to another job of the same name.
    """
    processes = _process_names(job)
    converted = [event for item in items if (event := _to_job_event(item, job.name, processes)) is not None]
    return sorted(
        (event for event in converted if job.created is None or event.time >= job.created),
        key=lambda event: event.time,
    )


def select_pod_events(items: Iterable[Json], job: JobRecord) -> list[Json]:
    """Return the events of pods that belong or belonged to the job.

    Pods are matched by name, because a deleted pod has no labels to query. Events of the operator are left
    out: an event of the job says the same once for all pods.
    """
    processes = _process_names(job)
    return [
        item
        for item in items
        if item.get("reportingController") != EVENT_CONTROLLER
        and _process_of_pod(str((item.get("regarding") or {}).get("name") or ""), job.name, processes)
    ]


def _process_of_pod(pod: str, job: str, processes: frozenset[str]) -> str:
    """Return the process of a pod of the job; empty if it is another job's.

    The name ends with the attempt; that of a pod of an operator of an earlier version does not.
    """
    process = pod.removeprefix(f"{job}-")
    if process == pod:
        return ""
    for candidate in (process, _ATTEMPT.sub("", process)):
        if candidate in processes or _ROLLOUT_NAME.fullmatch(candidate):
            return candidate
    return ""


def _process_names(job: JobRecord) -> frozenset[str]:
    try:
        return frozenset({Role.NATS, *(process.name for process in roles(job.job))})
    except ValidationError:
        # The job was created by a newer kubealign version: use the processes that every job has.
        return frozenset({*_SINGLE_PROCESSES, f"{Role.TRAINER}-0"})


def _to_job_event(item: Json, job: str, processes: frozenset[str]) -> JobEvent | None:
    """Return the event; None if it has no time."""
    series = item.get("series") or {}
    timestamp = (
        series.get("lastObservedTime")
        or item.get("deprecatedLastTimestamp")
        or item.get("eventTime")
        or (item.get("metadata") or {}).get("creationTimestamp")
    )
    if not isinstance(timestamp, str):
        return None
    regarding = item.get("regarding") or {}
    note = str(item.get("note") or "")
    if regarding.get("kind") == "Pod":
        pod = str(regarding.get("name") or "")
        note = f"{_process_of_pod(pod, job, processes) or pod.removeprefix(f'{job}-')}: {note}"
    return JobEvent(
        time=datetime.fromisoformat(timestamp),
        type=str(item.get("type") or "Normal"),
        reason=str(item.get("reason") or ""),
        message=note,
        count=int(series.get("count") or item.get("deprecatedCount") or 1),
    )
