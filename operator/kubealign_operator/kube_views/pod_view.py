"""Reduces a pod from the API to the fields that the planner needs."""

from collections.abc import Mapping
from typing import Any

from kubealign_operator.kube_views.gpu_limits import gpu_count
from kubealign_operator.kube_views.lenient_json import (
    get_path,
    integer,
    items,
    labels,
    mapping,
    text,
    texts,
    timestamp,
)
from kubealign_operator.kube_views.observed_job import (
    ContainerTerminated,
    ContainerView,
    ContainerWaiting,
    PodCondition,
    PodView,
)
from kubealign_operator.kube_views.ownership import owner_uid
from kubealign_operator.names import MAIN_CONTAINER


def pod_view(pod: Mapping[str, Any]) -> PodView:
    """Parse a pod from JSON; whatever is missing or malformed counts as absent."""
    conditions = tuple(_condition(item) for item in items(get_path(pod, "status", "conditions")))
    limits = _limits(pod)
    return PodView(
        name=text(get_path(pod, "metadata", "name")),
        uid=text(get_path(pod, "metadata", "uid")),
        labels=labels(get_path(pod, "metadata", "labels")),
        owner_uid=owner_uid(mapping(pod.get("metadata"))) or "",
        phase=text(get_path(pod, "status", "phase")),
        reason=text(get_path(pod, "status", "reason")),
        message=text(get_path(pod, "status", "message")),
        ready=any(condition.type == "Ready" and condition.status == "True" for condition in conditions),
        node=text(get_path(pod, "spec", "nodeName")),
        created_at=timestamp(get_path(pod, "metadata", "creationTimestamp")),
        deletion_at=timestamp(get_path(pod, "metadata", "deletionTimestamp")),
        deletion_grace_seconds=integer(get_path(pod, "metadata", "deletionGracePeriodSeconds")),
        finalizers=texts(get_path(pod, "metadata", "finalizers")),
        active_deadline_seconds=integer(get_path(pod, "spec", "activeDeadlineSeconds")),
        memory_limit=_memory_limit(limits),
        gpus=gpu_count(limits),
        containers=tuple(
            _container(item)
            for field in ("initContainerStatuses", "containerStatuses")
            for item in items(get_path(pod, "status", field))
        ),
        # All other conditions repeat what phase, ready and containers contain.
        conditions=tuple(item for item in conditions if item.type in ("PodScheduled", "DisruptionTarget")),
    )


def _container(status: Mapping[str, Any]) -> ContainerView:
    state = status.get("state")
    waiting, terminated_state = get_path(state, "waiting"), get_path(state, "terminated")
    code = integer(get_path(terminated_state, "exitCode"))
    terminated = None
    if isinstance(terminated_state, Mapping):
        terminated = ContainerTerminated(
            exit_code=-1 if code is None else code,
            reason=text(terminated_state.get("reason")),
            message=text(terminated_state.get("message")),
            started_at=timestamp(terminated_state.get("startedAt")),
            finished_at=timestamp(terminated_state.get("finishedAt")),
        )
    return ContainerView(
        name=text(status.get("name")),
        running=isinstance(get_path(state, "running"), Mapping),
        waiting=ContainerWaiting(text(waiting.get("reason")), text(waiting.get("message")))
        if isinstance(waiting, Mapping)
        else None,
        terminated=terminated,
    )


def _condition(condition: Mapping[str, Any]) -> PodCondition:
    return PodCondition(
        type=text(condition.get("type")),
        status=text(condition.get("status")),
        reason=text(condition.get("reason")),
        message=text(condition.get("message")),
    )


def _limits(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    for container in items(get_path(pod, "spec", "containers")):
        if container.get("name") == MAIN_CONTAINER:
            return mapping(get_path(container, "resources", "limits"))
    return {}


def _memory_limit(limits: Mapping[str, Any]) -> str:
    limit = limits.get("memory")
    return str(limit) if isinstance(limit, str | int) else ""
