"""Failed pods of earlier attempts, which are kept for their logs as a Job keeps its failed pods.

The newest one of each process is kept until the process fails again, or until the job's pods are deleted. No
pod needs a mark for it: a pod is kept once it has failed, its successor's attempt has been recorded, and the
restart backoff is over.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime

from kubealign.roles import Process
from kubealign_operator import names
from kubealign_operator.kube_views import pod_state
from kubealign_operator.kube_views.observed_job import PodView
from kubealign_operator.planner.restart_policy import retain_until


def has_kept_log(pod: PodView) -> bool:
    """Return True when the pod has failed by itself after its process ran, so that its log can be read.

    The phase decides, not the process: another container of the pod may still use the pod's resources. A pod
    that its node never ran has no log.
    """
    has_ended = pod.phase == "Failed" and pod_state.termination_state(pod) is not None
    return has_ended and not pod_state.is_terminating(pod)


def kept_pods(
    processes: Sequence[Process], pods: Sequence[PodView], attempts: Mapping[str, int], now: datetime
) -> frozenset[str]:
    """Return the names of the failed pods that no longer count for anything.

    Args:
        processes: All processes of the job, each by itself.
        pods: Pods of the job.
        attempts: Number of restarts by unit name, as the status records them; an absent unit counts as 0.
    """
    units = {process.name: process.unit for process in processes}
    newest: defaultdict[str, int] = defaultdict(int, attempts)
    for pod in pods:
        unit = units.get(_process(pod))
        if unit is not None:
            attempt = pod_state.attempt_of(pod) + pod_state.is_leftover(pod)
            newest[unit] = max(newest[unit], attempt)
    return frozenset(
        pod.name
        for pod in pods
        if _process(pod) in units and _is_kept(pod, newest[units[_process(pod)]], now)
    )


def _process(pod: PodView) -> str:
    return pod.labels.get(names.PROCESS_LABEL, "")


def _is_kept(pod: PodView, unit_attempt: int, now: datetime) -> bool:
    attempt = pod_state.attempt_of(pod)
    if attempt >= unit_attempt or not has_kept_log(pod):
        return False
    # A later attempt than the next one has begun: the backoff before it was that of another pod.
    retained_until = retain_until(unit_attempt, pod) if attempt == unit_attempt - 1 else None
    return retained_until is None or retained_until <= now
