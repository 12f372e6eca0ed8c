"""The reason why a pod is not ready, in one sentence for the job's status."""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from kubealign.labels import QUEUE_LABEL
from kubealign.process_failure import (
    PodTermination,
    ProcessFailure,
    describe_termination,
    describe_unscheduled,
    describe_waiting_container,
    permanent_failure_details,
)
from kubealign.process_settings import ExitCode
from kubealign.termination_message import truncate_middle
from kubealign_operator.kube_views import pod_state
from kubealign_operator.kube_views.observed_job import PodView

#: A scheduled pod that has not started by then is blocked by something that its status does not show.
SLOW_START_AFTER = timedelta(seconds=60)
_MAX_FINALIZER_CHARS = 100

_DISRUPTED = "Disrupted"
_DISRUPTIONS = {
    "PreemptionByScheduler": "was preempted by a pod of higher priority",
    "DeletionByTaintManager": "was evicted from its node because of a taint",
    "EvictionByEvictionAPI": "was evicted through the eviction API, as by a drain of its node",
    "DeletionByPodGC": "was on a node that no longer exists",
    "TerminationByKubelet": "was ended by its node: shutdown, pressure, or a critical pod",
}


@dataclass(frozen=True)
class FailureReason:
    """Reason why a process is not ready.

    Args:
        reason: One CamelCase word.
        message: A sentence without a full stop that begins with the name of the process.
    """

    reason: str
    message: str


def create_refused(process: str, why: str) -> FailureReason:
    """Return the reason for a pod whose creation the API server refused."""
    return FailureReason("Refused", f"{process}: its pod was refused: {truncate_middle(why)}")


def pod_name_conflict(process: str, pod: str) -> FailureReason:
    """Return the reason for a pod whose name is taken by a pod of another owner."""
    return FailureReason(
        "NameTaken", f"{process} waits until the pod {pod}, which is not this job's, is gone"
    )


def blocking_finalizers(pod: PodView) -> str:
    """Return a sentence about a deleted pod that only its finalizers keep."""
    finalizers = ", ".join(finalizer[:_MAX_FINALIZER_CHARS] for finalizer in pod.finalizers[:3])
    return f"the deleted pod {pod.name} is kept by the finalizer {finalizers}"


def successor_blocked(process: str, pod: PodView) -> FailureReason:
    """Return the reason for a process that waits until the finalizers of its earlier pods are removed."""
    return FailureReason("Finalizer", f"{process} waits for its successor: {blocking_finalizers(pod)}")


def reason_not_ready(process: str, pod: PodView, now: datetime, one_shot: bool) -> FailureReason | None:
    """Return why this pod is not ready; None: nothing blocks it.

    Args:
        one_shot: The process runs to completion, so that exit code 0 is no failure.
    """
    if pod_state.is_blocked_by_finalizers(pod, now):
        return successor_blocked(process, pod)
    if pod_state.has_terminated(pod):
        is_done = one_shot and pod_state.exit_code(pod) == ExitCode.DONE
        return None if is_done else _terminated(process, pod)
    if pod_state.is_terminating(pod):
        reason = deletion_reason(process, pod)
        is_disrupted = reason.reason == _DISRUPTED
        return replace(reason, message=f"{reason.message}; it will be restarted") if is_disrupted else reason
    return _waiting(process, pod) or _unscheduled(process, pod) or _slow_start(process, pod, now)


def termination_reason(process: str, pod: PodView) -> FailureReason:
    """Return why a process terminated that should have kept running."""
    state = pod_state.termination_state(pod)
    termination = PodTermination(
        exit_code=None if state is None else state.exit_code,
        reason="" if state is None else state.reason,
        message="" if state is None else state.message,
        pod_reason=pod.reason,
        pod_message=pod.message,
        node=pod.node,
        memory_limit=pod.memory_limit,
    )
    return _named(process, describe_termination(termination))


def lost_pod(process: str, pod: PodView, is_forced: bool) -> FailureReason:
    """Return the reason for a pod whose node has not confirmed its end in time.

    Args:
        is_forced: The job allows forced deletion.
    """
    node_name = f"its node {pod.node}" if pod.node else "its node"
    if is_forced:
        return FailureReason(
            "NodeLost", f"{process} is force-deleted: {node_name} has not confirmed that it ended"
        )
    return FailureReason(
        "NodeLost",
        f"{process} cannot be replaced: {node_name} has not confirmed that pod {pod.name} ended, so its "
        "processes may still run. Once the machine is known to be off, delete the Node object or give it the "
        "taint node.kubernetes.io/out-of-service=nodeshutdown:NoExecute; lifecycle.forceDeleteLostPods: true "
        "replaces the pod at once",
    )


def permanent_failure_reason(process: str, pod: PodView) -> FailureReason:
    """Return the reason for a process that reported a permanent failure."""
    termination = pod_state.termination_state(pod)
    details = "" if termination is None else permanent_failure_details(termination.message)
    return FailureReason(
        "PermanentFailure",
        f"{process}: {details}" if details else f"{process} reported a permanent failure without a message",
    )


def deletion_reason(process: str, pod: PodView) -> FailureReason:
    """Return the reason for a pod that is being deleted."""
    disruption = pod_state.condition_of(pod, "DisruptionTarget")
    if disruption is not None and disruption.status == "True":
        why = _DISRUPTIONS.get(disruption.reason, "is being disrupted")
        return FailureReason(_DISRUPTED, f"{process} {why}")
    return FailureReason("Ending", f"{process} is terminating")


def _terminated(process: str, pod: PodView) -> FailureReason:
    is_permanent = pod_state.exit_code(pod) == ExitCode.PERMANENT
    return permanent_failure_reason(process, pod) if is_permanent else termination_reason(process, pod)


def _named(process: str, failure: ProcessFailure) -> FailureReason:
    return FailureReason(failure.reason, f"{process} {failure.text}")


def _waiting(process: str, pod: PodView) -> FailureReason | None:
    state = pod_state.waiting_state(pod)
    failure = None if state is None else describe_waiting_container(state.reason, state.message)
    return None if failure is None else _named(process, failure)


def _unscheduled(process: str, pod: PodView) -> FailureReason | None:
    scheduled = pod_state.condition_of(pod, "PodScheduled")
    if scheduled is None or scheduled.status != "False":
        return None
    failure = describe_unscheduled(scheduled.reason, scheduled.message, pod.labels.get(QUEUE_LABEL, ""))
    return None if failure is None else _named(process, failure)


def _slow_start(process: str, pod: PodView, now: datetime) -> FailureReason | None:
    state = pod_state.waiting_state(pod)
    container = pod_state.main_container(pod)
    if container is not None and container.running:
        return None
    if state is None or not pod.node or pod.created_at is None or now - pod.created_at < SLOW_START_AFTER:
        return None
    return FailureReason(
        "SlowStart",
        f"{process} has been on node {pod.node} for a minute without starting: its image or a volume is not "
        f"available yet; see kubectl describe pod {pod.name}",
    )
