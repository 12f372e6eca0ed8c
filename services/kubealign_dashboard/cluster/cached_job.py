"""A cached job: its document as JSON text, plus the fields by which jobs are filtered and sorted.

Ten thousand documents as dictionaries would exceed the dashboard's memory, and a page shows fifty:
documents are parsed when they are shown.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from kubealign.client.records import JobRecord, JobRef
from kubealign.kube.resources import resource_version

Json = dict[str, Any]
#: A sort key: the value, then namespace and name, so that keys are unique.
SortKey = tuple[Any, str, str]

#: Unused here, and half of a document's size.
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


_MAX_ROLES = 64


@dataclass(frozen=True, slots=True)
class RoleReadiness:
    """Numbers of desired and of ready processes of one role."""

    name: str
    replicas: int
    ready: int


@dataclass(frozen=True, slots=True)
class JobActivity:
    """The part of a job's status that its metrics show. Times are in seconds since the epoch; None: unset."""

    completed_at: float | None
    active_since: float | None
    #: Duration of earlier active periods.
    active_seconds: float
    restarts: int
    roles: tuple[RoleReadiness, ...]


@dataclass(frozen=True, slots=True)
class CachedJob:
    """A cached job. `version` is the resourceVersion: greater is newer."""

    ref: JobRef
    version: int
    uid: str
    document: bytes
    labels: Mapping[str, str]
    created: str
    phase: str
    algorithm: str
    #: Before the first step -1 and minus infinity, so that these jobs sort first.
    step: int
    reward: float
    activity: JobActivity

    @property
    def record(self) -> JobRecord:
        """The job's record, parsed anew at each access: nobody else holds it."""
        return JobRecord(json.loads(self.document))

    def sort_key(self, order: str) -> SortKey:
        """Return the sort key for an order, one of SORT_FIELDS."""
        value = self.ref.name if order == "name" else getattr(self, order)
        return value, self.ref.namespace, self.ref.name


SORT_FIELDS = ("name", "created", "phase", "step", "reward")


def cached_job(item: Json) -> CachedJob:
    """Build a cached job from an object of the API server."""
    document = strip_unused_metadata(item)
    metadata = document["metadata"]
    spec, status = document.get("spec") or {}, document.get("status") or {}
    return CachedJob(
        ref=JobRef(metadata["namespace"], metadata["name"]),
        version=resource_version(metadata),
        uid=str(metadata["uid"]),
        document=json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode(),
        labels=metadata.get("labels") or {},
        created=str(metadata.get("creationTimestamp") or ""),
        phase=str(status.get("phase") or ""),
        algorithm=next(iter(spec.get("algorithm") or {}), ""),
        step=int(_number(status.get("step"), -1)),
        reward=_number(status.get("reward"), -math.inf),
        activity=_activity(status),
    )


def _activity(status: Mapping[str, Any]) -> JobActivity:
    roles = status.get("roles")
    return JobActivity(
        completed_at=_timestamp(status.get("completionTime")),
        active_since=_timestamp(status.get("activeSince")),
        active_seconds=_number(status.get("activeSeconds"), 0.0),
        restarts=int(_number(status.get("restarts"), 0)),
        roles=tuple(
            RoleReadiness(
                role["name"], int(_number(role.get("replicas"), 0)), int(_number(role.get("ready"), 0))
            )
            for role in (roles[:_MAX_ROLES] if isinstance(roles, list) else ())
            if isinstance(role, Mapping) and isinstance(role.get("name"), str)
        ),
    )


def _timestamp(value: Any) -> float | None:
    """Return the seconds since the epoch of a Kubernetes timestamp; None for anything else."""
    try:
        moment = datetime.fromisoformat(value)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (TypeError, ValueError, OverflowError):
        return None


def strip_unused_metadata(item: Mapping[str, Any]) -> Json:
    """Remove managedFields and kubectl's last-applied annotation."""
    metadata = {key: value for key, value in item["metadata"].items() if key != "managedFields"}
    if _LAST_APPLIED in (metadata.get("annotations") or {}):
        annotations = {key: text for key, text in metadata["annotations"].items() if key != _LAST_APPLIED}
        metadata["annotations"] = annotations
    return {
        "apiVersion": "kubealign.dev/v1alpha1",
        "kind": "AlignmentJob",
        **{key: value for key, value in item.items() if key != "metadata"},
        "metadata": metadata,
    }


def _number(value: Any, default: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return default
    return value
