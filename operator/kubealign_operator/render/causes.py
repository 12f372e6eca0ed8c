"""The reason why a pod is not ready, in one sentence for the job's status."""

import signal
from dataclasses import dataclass
from datetime import datetime, timedelta

from kubealign.last_words import last_words, short
from kubealign.process import Exit
from kubealign_operator.render import pod_state
from kubealign_operator.render.observed import PodView

#: A scheduled pod that has not started by then is blocked by something that its status does not show.
SLOW_AFTER = timedelta(seconds=60)

_IMAGE = (
    "ErrImagePull",
    "ImagePullBackOff",
    "InvalidImageName",
    "ErrImageNeverPull",
    "ImageInspectError",
    "RegistryUnavailable",
)
_CONFIGURATION = ("CreateContainerConfigError", "CreateContainerError", "RunContainerError")
_DISRUPTIONS = {
    "PreemptionByScheduler": "was preempted by a pod of higher priority",
    "DeletionByTaintManager": "was evicted from its node because of a taint",
    "EvictionByEvictionAPI": "was evicted through the eviction API, as by a drain of its node",
    "DeletionByPodGC": "was on a node that no longer exists",
}


@dataclass(frozen=True)
class Cause:
    """Reason why a process is not ready.

    Args:
        reason: One CamelCase word.
        message: A sentence without a full stop that begins with the name of the process.
    """

    reason: str
    text: str


def refused(process: str, why: str) -> Cause:
    """Return the reason for a pod whose creation the API server refused."""
    return Cause("Refused", f"{process}: its pod was refused: {short(why)}")


def name_taken(process: str, pod: str) -> Cause:
    """Return the reason for a pod whose name is taken by a pod of another owner."""
    return Cause("NameTaken", f"{process} waits until the pod {pod}, which is not this job's, is gone")


def cause(process: str, pod: PodView, now: datetime, one_shot: bool) -> Cause | None:
    """Return why this pod is not ready; None: nothing blocks it.

    Args:
        one_shot: The process runs to completion, so that exit code 0 is no failure.
    """
    if pod_state.ended(pod):
        is_done = one_shot and pod_state.exit_code(pod) == Exit.DONE
        return None if is_done else _ended(process, pod)
    if pod_state.leaving(pod):
        return _leaving(process, pod, now)
    return _waiting(process, pod) or _unscheduled(process, pod) or _slow(process, pod, now)


def how_it_ended(process: str, pod: PodView) -> Cause:
    """Return why a process terminated that should have kept running."""
    termination = pod_state.terminated(pod)
    if termination is not None and termination.reason == "OOMKilled":
        limit = f"its limit of {pod.memory_limit}" if pod.memory_limit else "its node had left"
        return Cause("OutOfMemory", f"{process} was killed: it needed more memory than {limit}")
    if pod.reason == "Evicted":
        return Cause("Evicted", f"{process} was evicted by its node: {short(pod.message) or 'no reason given'}")
    if pod.reason == "NodeLost":
        return Cause("NodeLost", f"{process} was lost with its node {pod.node}".rstrip())
    if termination is None:
        details = ": ".join(part for part in (pod.reason, short(pod.message)) if part)
        return Cause("Lost", f"{process} ended without an exit code; its node reported: {details or 'nothing'}")
    details = last_words(termination.message)
    return Cause("Crashed", f"{process} {_code(termination.exit_code)}" + (f": {details}" if details else ""))


def permanent(process: str, pod: PodView) -> Cause:
    """Return the reason for a process that reported a permanent failure."""
    termination = pod_state.terminated(pod)
    details = "" if termination is None else termination.message.strip()
    # The log is quoted only when the process wrote no termination message.
    details = last_words(details) if details.startswith("{") else short(details, 3500)
    return Cause(
        "PermanentFailure",
        f"{process}: {details}" if details else f"{process} reported a permanent failure without a message",
    )


def _ended(process: str, pod: PodView) -> Cause:
    is_permanent = pod_state.exit_code(pod) == Exit.PERMANENT
    return permanent(process, pod) if is_permanent else how_it_ended(process, pod)


def _code(code: int) -> str:
    if code == Exit.STOPPED:
        return "was stopped by SIGTERM"
    if code > 128:
        try:
            return f"was killed by {signal.Signals(code - 128).name}"
        except ValueError:
            pass
    return f"ended with code {code}"


def _leaving(process: str, pod: PodView, now: datetime) -> Cause:
    if pod_state.lost(pod, now):
        node_name = f"its node {pod.node}" if pod.node else "its node"
        return Cause("NodeLost", f"{process} is force-deleted: {node_name} has not confirmed that it ended")
    disruption = pod_state.condition(pod, "DisruptionTarget")
    if disruption is not None and disruption.status == "True":
        why = _DISRUPTIONS.get(disruption.reason, "is being disrupted")
        return Cause("Disrupted", f"{process} {why}; it will be restarted")
    return Cause("Ending", f"{process} is terminating")


def _waiting(process: str, pod: PodView) -> Cause | None:
    state = pod_state.waiting(pod)
    if state is None:
        return None
    if state.reason in _IMAGE:
        # The kubelet alternates between ErrImagePull and ImagePullBackOff for one failure.
        _, _, details = state.message.rpartition("ErrImagePull: ")
        return Cause("ImagePull", f"{process} cannot get its image: {short(details) or state.reason}")
    if state.reason in _CONFIGURATION:
        return Cause("BadConfiguration", f"{process} cannot be started: {short(state.message) or state.reason}")
    return None


def _unscheduled(process: str, pod: PodView) -> Cause | None:
    scheduled = pod_state.condition(pod, "PodScheduled")
    if scheduled is None or scheduled.status != "False":
        return None
    if scheduled.reason == "SchedulingGated":
        queue = pod.labels.get("kueue.x-k8s.io/queue-name")
        return Cause(
            "Queued", f"{process} waits until {f'queue {queue}' if queue else 'its queue'} admits it"
        )
    if scheduled.reason == "Unschedulable":
        return Cause("Unschedulable", f"{process} fits on no node: {short(scheduled.message)}")
    return None


def _slow(process: str, pod: PodView, now: datetime) -> Cause | None:
    state = pod_state.waiting(pod)
    container = pod_state.main_of(pod)
    if container is not None and container.running:
        return None
    if state is None or not pod.node or pod.created_at is None or now - pod.created_at < SLOW_AFTER:
        return None
    return Cause(
        "SlowStart",
        f"{process} has been on node {pod.node} for a minute without starting: its image or a volume is not "
        f"available yet; see kubectl describe pod {pod.name}",
    )
