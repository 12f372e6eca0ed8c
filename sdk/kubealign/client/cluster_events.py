"""What Kubernetes noted about a job and its pods. Pure."""

import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from pydantic import ValidationError

from kubealign.client.records import JobEvent, JobRecord
from kubealign.process import Role
from kubealign.roles import PREPARE, roles

Json = Mapping[str, Any]

#: Those that were added while the job ran are in no spec.
_ROLLOUT = re.compile(rf"{Role.ROLLOUT}-\d+")


def events(items: Iterable[Json], job: str, since: datetime | None) -> list[JobEvent]:
    """Oldest first; what a pod's events say begins with its name. `since`: what is older belongs to another
    job of the same name."""
    found = [event for item in items if (event := _event(item, job)) is not None]
    return sorted(
        (event for event in found if since is None or event.time >= since), key=lambda event: event.time
    )


def of_pods(items: Iterable[Json], job: JobRecord) -> list[Json]:
    """Those about a pod that is, or was, of the job: a pod that is gone has no labels to ask."""
    processes, before = _processes(job), f"{job.name}-"

    def about(item: Json) -> bool:
        name = str((item.get("regarding") or {}).get("name") or "")
        process = name.removeprefix(before)
        return process != name and (process in processes or _ROLLOUT.fullmatch(process) is not None)

    return [item for item in items if about(item)]


def _processes(job: JobRecord) -> frozenset[str]:
    try:
        return frozenset({Role.NATS, *(process.name for process in roles(job.job))})
    except ValidationError:
        # A newer kubealign made the job: what it surely has.
        return frozenset({Role.NATS, Role.DRIVER, PREPARE, f"{Role.TRAINER}-0"})


def _event(item: Json, job: str) -> JobEvent | None:
    """None: it says no time."""
    series = item.get("series") or {}
    when = (
        series.get("lastObservedTime")
        or item.get("deprecatedLastTimestamp")
        or item.get("eventTime")
        or (item.get("metadata") or {}).get("creationTimestamp")
    )
    if not isinstance(when, str):
        return None
    regarding = item.get("regarding") or {}
    note = str(item.get("note") or "")
    if regarding.get("kind") == "Pod":
        note = f"{str(regarding.get('name') or '').removeprefix(f'{job}-')}: {note}"
    return JobEvent(
        time=datetime.fromisoformat(when),
        type=str(item.get("type") or "Normal"),
        reason=str(item.get("reason") or ""),
        message=note,
        count=int(series.get("count") or item.get("deprecatedCount") or 1),
    )
