"""What keeps a pod from serving, in a sentence."""

import signal
from dataclasses import dataclass
from datetime import datetime, timedelta

from kubealign.last_words import last_words, short
from kubealign.process import Exit
from kubealign_operator.render import pod_state
from kubealign_operator.render.observed import PodView

#: A pod that a node has taken and that has not begun by then has something in its way that its status does
#: not tell.
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
    "PreemptionByScheduler": "gives way to a pod of higher priority",
    "DeletionByTaintManager": "has to leave its node",
    "EvictionByEvictionAPI": "was evicted, as when a node is drained",
    "DeletionByPodGC": "was on a node that is gone",
}


@dataclass(frozen=True)
class Cause:
    """Why a process does not serve. `reason` is one CamelCase word, `text` a sentence without a full stop
    that begins with the process's name."""

    reason: str
    text: str


def refused(process: str, why: str) -> Cause:
    """The API did not let its pod be made."""
    return Cause("Refused", f"{process}: its pod was refused: {short(why)}")


def name_taken(process: str, pod: str) -> Cause:
    """Another job's pod is in the way."""
    return Cause("NameTaken", f"{process} waits until the pod {pod}, which is not this job's, is gone")


def cause(process: str, pod: PodView, now: datetime, one_shot: bool) -> Cause | None:
    """Why this pod does not serve; None: nothing is in its way. `one_shot`: it may end with its work done."""
    if pod_state.ended(pod):
        done = one_shot and pod_state.exit_code(pod) == Exit.DONE
        return None if done else _ended(process, pod)
    if pod_state.leaving(pod):
        return _leaving(process, pod, now)
    return _waiting(process, pod) or _unscheduled(process, pod) or _slow(process, pod, now)


def how_it_ended(process: str, pod: PodView) -> Cause:
    """The end of a process that should have gone on."""
    end = pod_state.terminated(pod)
    if end is not None and end.reason == "OOMKilled":
        limit = f"its limit of {pod.memory_limit}" if pod.memory_limit else "its node had left"
        return Cause("OutOfMemory", f"{process} was killed: it needed more memory than {limit}")
    if pod.reason == "Evicted":
        return Cause("Evicted", f"{process} was evicted by its node: {short(pod.message) or 'no word why'}")
    if pod.reason == "NodeLost":
        return Cause("NodeLost", f"{process} was lost with its node {pod.node}".rstrip())
    if end is None:
        said = ": ".join(part for part in (pod.reason, short(pod.message)) if part)
        return Cause("Lost", f"{process} ended, and its node said only: {said or 'nothing'}")
    said = last_words(end.message)
    return Cause("Crashed", f"{process} {_code(end.exit_code)}" + (f": {said}" if said else ""))


def permanent(process: str, pod: PodView) -> Cause:
    """A process that says that a restart would not help."""
    end = pod_state.terminated(pod)
    said = "" if end is None else end.message.strip()
    # A log is told only where there is no message of its own.
    said = last_words(said) if said.startswith("{") else short(said, 3500)
    return Cause(
        "PermanentFailure",
        f"{process}: {said}" if said else f"{process} said that a restart would not help, but not why",
    )


def _ended(process: str, pod: PodView) -> Cause:
    said = pod_state.exit_code(pod) == Exit.PERMANENT
    return permanent(process, pod) if said else how_it_ended(process, pod)


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
        where = f"its node {pod.node}" if pod.node else "its node"
        return Cause("NodeLost", f"{process} is given up: {where} does not say that it has ended")
    disruption = pod_state.condition(pod, "DisruptionTarget")
    if disruption is not None and disruption.status == "True":
        why = _DISRUPTIONS.get(disruption.reason, "has to go")
        return Cause("Disrupted", f"{process} {why}; it is started again")
    return Cause("Ending", f"{process} is ending")


def _waiting(process: str, pod: PodView) -> Cause | None:
    wait = pod_state.waiting(pod)
    if wait is None:
        return None
    if wait.reason in _IMAGE:
        # The kubelet tells one failure in two ways, by turns.
        _, _, told = wait.message.rpartition("ErrImagePull: ")
        return Cause("ImagePull", f"{process} cannot get its image: {short(told) or wait.reason}")
    if wait.reason in _CONFIGURATION:
        return Cause("BadConfiguration", f"{process} cannot be started: {short(wait.message) or wait.reason}")
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
    wait = pod_state.waiting(pod)
    begun = pod_state.main_of(pod)
    if begun is not None and begun.running:
        return None
    if wait is None or not pod.node or pod.created_at is None or now - pod.created_at < SLOW_AFTER:
        return None
    return Cause(
        "SlowStart",
        f"{process} has been on node {pod.node} for a minute without starting: an image or a volume is not "
        f"there yet; kubectl describe pod {pod.name} says which",
    )
