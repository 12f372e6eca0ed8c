"""The state of a pod's process, derived from the pod's view."""

from datetime import datetime, timedelta

from kubealign.process_settings import ExitCode
from kubealign_operator import names
from kubealign_operator.kube_views.observed_job import (
    ContainerTerminated,
    ContainerView,
    ContainerWaiting,
    PodCondition,
    PodView,
)

#: Time after a pod's grace period within which the node must confirm that the pod has ended.
DELETION_TIMEOUT = timedelta(seconds=60)
#: Reasons of a failed pod that its kubelet or the node's controller has ended. Not Evicted: without the
#: condition it means that the pod exceeded its own limit of local storage.
_DISRUPTION_REASONS = ("Preempting", "NodeShutdown", "Shutdown", "Terminated", "NodeLost")


def main_container(pod: PodView) -> ContainerView | None:
    return next((container for container in pod.containers if container.name == names.MAIN_CONTAINER), None)


def termination_state(pod: PodView) -> ContainerTerminated | None:
    """Return the termination of the process; None: it runs, or its termination is unknown."""
    main = main_container(pod)
    return None if main is None else main.terminated


def has_terminated(pod: PodView) -> bool:
    """Return True when the process has terminated for good."""
    return termination_state(pod) is not None or pod.phase in ("Succeeded", "Failed")


def exit_code(pod: PodView) -> int | None:
    """Return the exit code; None: the process runs, or its exit code is unknown."""
    termination = termination_state(pod)
    if termination is not None:
        return termination.exit_code
    return int(ExitCode.DONE) if pod.phase == "Succeeded" else None


def is_terminating(pod: PodView) -> bool:
    """Return True when the pod is being deleted."""
    return pod.deletion_at is not None


def is_ready(pod: PodView) -> bool:
    return pod.ready and not has_terminated(pod) and not is_terminating(pod)


def is_deletion_overdue(pod: PodView, now: datetime) -> bool:
    """Return True when the pod is still there although its deletion has had its time."""
    return pod.deletion_at is not None and now - pod.deletion_at > DELETION_TIMEOUT


def is_finalizing(pod: PodView) -> bool:
    """Return True when only finalizers keep the pod: its deletion waits neither for a node nor for time."""
    return is_terminating(pod) and pod.deletion_grace_seconds == 0 and bool(pod.finalizers)


def is_leftover(pod: PodView) -> bool:
    """Return True when the processes of a deleted pod have ended and only its finalizers keep the object.

    A pod that was deleted by force while its node still reports it as running is none: its processes may
    run, and its address is still published.
    """
    return is_finalizing(pod) and (pod.phase in ("Succeeded", "Failed") or not was_scheduled(pod))


def is_lost(pod: PodView, now: datetime) -> bool:
    """Return True when the node has not confirmed in time that the pod ended."""
    return is_deletion_overdue(pod, now) and not is_finalizing(pod)


def is_blocked_by_finalizers(pod: PodView, now: datetime) -> bool:
    """Return True when finalizers keep the pod for longer than a controller needs to remove them."""
    return is_finalizing(pod) and is_deletion_overdue(pod, now)


def was_scheduled(pod: PodView) -> bool:
    """Return True when a node has accepted the pod: it may have run and may have a log."""
    return bool(pod.node) or any(container.running or container.terminated for container in pod.containers)


def has_run(pod: PodView) -> bool:
    """Return True when the process runs or has ended."""
    main = main_container(pod)
    return has_terminated(pod) or (main is not None and main.running)


def was_disrupted(pod: PodView) -> bool:
    """Return True when the cluster ended the pod: preemption, eviction, a drain, or its node's shutdown.

    See https://kubernetes.io/docs/concepts/workloads/pods/disruptions/#pod-disruption-conditions. The pod's
    own reason covers a kubelet that died before it set the condition.
    """
    disruption = condition_of(pod, "DisruptionTarget")
    return pod.reason in _DISRUPTION_REASONS or (disruption is not None and disruption.status == "True")


def attempt_of(pod: PodView) -> int:
    """Return the attempt from the pod's label; -1: the label is not the operator's."""
    return _label_number(pod, names.ATTEMPT_LABEL, -1)


def credentials_generation_of(pod: PodView) -> int:
    """Return the generation of the credentials that the pod mounts; 1: its label is not the operator's."""
    return max(1, _label_number(pod, names.CREDENTIALS_LABEL, 1))


def document_generation_of(pod: PodView) -> int:
    """Return the generation of the job's document that the pod mounts; 1: it has no label of another."""
    return max(1, _label_number(pod, names.DOCUMENT_LABEL, 1))


def _label_number(pod: PodView, label: str, default: int) -> int:
    """Return the number in a label of the pod; the default if it is none that the operator writes."""
    text = pod.labels.get(label, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else default


def is_gated(pod: PodView) -> bool:
    """Return True when a queue has not admitted the pod yet."""
    scheduled = condition_of(pod, "PodScheduled")
    return scheduled is not None and (scheduled.status, scheduled.reason) == ("False", "SchedulingGated")


def run_seconds(pod: PodView) -> float:
    """Return the run time of the process in seconds; 0 when unknown."""
    termination = termination_state(pod)
    if termination is None or termination.started_at is None or termination.finished_at is None:
        return 0.0
    return max(0.0, (termination.finished_at - termination.started_at).total_seconds())


def finished_at(pod: PodView) -> datetime | None:
    termination = termination_state(pod)
    return None if termination is None else termination.finished_at


def waiting_state(pod: PodView) -> ContainerWaiting | None:
    """Return why the container, or an earlier one, does not run."""
    states = [container.waiting for container in pod.containers if container.waiting is not None]
    return next((state for state in states if state.reason not in ("", "PodInitializing")), None)


def condition_of(pod: PodView, kind: str) -> PodCondition | None:
    return next((item for item in pod.conditions if item.type == kind), None)
