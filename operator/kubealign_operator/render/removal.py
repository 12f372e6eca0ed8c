"""Making pods go."""

from collections.abc import Iterable
from datetime import datetime

from kubealign_operator.render import pod_state
from kubealign_operator.render.observed import PodView
from kubealign_operator.render.rendered import Deletion


def delete(pods: Iterable[PodView], grace_seconds: int | None = None) -> list[Deletion]:
    """Those that are not going already."""
    return [Deletion(pod.name, pod.uid, grace_seconds) for pod in pods if not pod_state.leaving(pod)]


def give_up(pods: Iterable[PodView], now: datetime) -> tuple[list[Deletion], list[datetime]]:
    """(deletions without their nodes' word of those that are overdue, when the others will be).

    A process that still runs on a node nobody hears of does no harm: the fence of its successor is higher."""
    leaving = [pod for pod in pods if pod.deletion_at is not None]
    overdue = [Deletion(pod.name, pod.uid, 0) for pod in leaving if pod_state.lost(pod, now)]
    waking = [
        pod.deletion_at + pod_state.LOST_AFTER
        for pod in leaving
        if pod.deletion_at is not None and not pod_state.lost(pod, now)
    ]
    return overdue, waking
