"""Reduces a pod from the API to the fields that the planner needs."""

from collections.abc import Mapping
from typing import Any

from kubealign_operator.render.names import MAIN
from kubealign_operator.render.observed import ContainerView, PodCondition, PodView, Terminated, Waiting
from kubealign_operator.render.reading import inside, items, labels, moment, text, whole


def pod_view(pod: Mapping[str, Any]) -> PodView:
    """Parse a pod from JSON; whatever is missing or malformed counts as absent."""
    conditions = tuple(_condition(item) for item in items(inside(pod, "status", "conditions")))
    return PodView(
        name=text(inside(pod, "metadata", "name")),
        uid=text(inside(pod, "metadata", "uid")),
        labels=labels(inside(pod, "metadata", "labels")),
        phase=text(inside(pod, "status", "phase")),
        reason=text(inside(pod, "status", "reason")),
        message=text(inside(pod, "status", "message")),
        ready=any(condition.type == "Ready" and condition.status == "True" for condition in conditions),
        node=text(inside(pod, "spec", "nodeName")),
        created_at=moment(inside(pod, "metadata", "creationTimestamp")),
        deletion_at=moment(inside(pod, "metadata", "deletionTimestamp")),
        active_deadline_seconds=whole(inside(pod, "spec", "activeDeadlineSeconds")),
        memory_limit=_memory_limit(pod),
        containers=tuple(
            _container(item)
            for field in ("initContainerStatuses", "containerStatuses")
            for item in items(inside(pod, "status", field))
        ),
        # All other conditions repeat what phase, ready and containers contain.
        conditions=tuple(item for item in conditions if item.type in ("PodScheduled", "DisruptionTarget")),
    )


def _container(status: Mapping[str, Any]) -> ContainerView:
    state = status.get("state")
    waiting, terminated_state = inside(state, "waiting"), inside(state, "terminated")
    code = whole(inside(terminated_state, "exitCode"))
    terminated = None
    if isinstance(terminated_state, Mapping):
        terminated = Terminated(
            exit_code=-1 if code is None else code,
            reason=text(terminated_state.get("reason")),
            message=text(terminated_state.get("message")),
            started_at=moment(terminated_state.get("startedAt")),
            finished_at=moment(terminated_state.get("finishedAt")),
        )
    return ContainerView(
        name=text(status.get("name")),
        running=isinstance(inside(state, "running"), Mapping),
        waiting=Waiting(text(waiting.get("reason")), text(waiting.get("message")))
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


def _memory_limit(pod: Mapping[str, Any]) -> str:
    for container in items(inside(pod, "spec", "containers")):
        if container.get("name") == MAIN:
            limit = inside(container, "resources", "limits", "memory")
            return str(limit) if isinstance(limit, str | int) else ""
    return ""
