"""Deletions of pods."""

from collections.abc import Iterable
from datetime import datetime

from kubealign_operator.render import pod_state
from kubealign_operator.render.observed import PodView
from kubealign_operator.render.rendered import Deletion


def delete(pods: Iterable[PodView], grace_seconds: int | None = None) -> list[Deletion]:
    """Return deletions for the pods that are not being deleted already."""
    return [Deletion(pod.name, pod.uid, grace_seconds) for pod in pods if not pod_state.leaving(pod)]


def give_up(pods: Iterable[PodView], now: datetime) -> tuple[list[Deletion], list[datetime]]:
    """Force the deletion of pods whose nodes have not confirmed it in time.

    A process that still runs on an unreachable node does no harm: the fence of its successor is higher.

    Returns:
        The forced deletions, and the times at which the remaining deletions become overdue.
    """
    terminating = [pod for pod in pods if pod.deletion_at is not None]
    overdue = [Deletion(pod.name, pod.uid, 0) for pod in terminating if pod_state.lost(pod, now)]
    requeue_at = [
        pod.deletion_at + pod_state.LOST_AFTER
        for pod in terminating
        if pod.deletion_at is not None and not pod_state.lost(pod, now)
    ]
    return overdue, requeue_at
