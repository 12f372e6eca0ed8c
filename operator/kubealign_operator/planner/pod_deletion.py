"""Deletions of pods."""

from collections.abc import Iterable
from datetime import datetime

from kubealign_operator.kube_views import pod_state
from kubealign_operator.kube_views.observed import PodView
from kubealign_operator.planner.plan import PodDeletion


def delete_pods(pods: Iterable[PodView], grace_seconds: int | None = None) -> list[PodDeletion]:
    """Return deletions for the pods that are not being deleted already."""
    return [PodDeletion(pod.name, pod.uid, grace_seconds) for pod in pods if not pod_state.is_terminating(pod)]


def force_overdue_deletions(pods: Iterable[PodView], now: datetime) -> tuple[list[PodDeletion], list[datetime]]:
    """Force the deletion of pods whose nodes have not confirmed it in time.

    A process that still runs on an unreachable node does no harm: the fence of its successor is higher.

    Returns:
        The forced deletions, and the times at which the remaining deletions become overdue.
    """
    terminating = [pod for pod in pods if pod.deletion_at is not None]
    overdue = [PodDeletion(pod.name, pod.uid, 0) for pod in terminating if pod_state.is_deletion_overdue(pod, now)]
    requeue_at = [
        pod.deletion_at + pod_state.DELETION_TIMEOUT
        for pod in terminating
        if pod.deletion_at is not None and not pod_state.is_deletion_overdue(pod, now)
    ]
    return overdue, requeue_at
