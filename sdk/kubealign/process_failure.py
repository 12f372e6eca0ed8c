"""Failures of a pod's process: why the process ended, or why it does not start. Pure."""

import signal
from dataclasses import dataclass

from kubealign.process_settings import ExitCode
from kubealign.termination_message import last_error_line, truncate_middle

_MAX_PERMANENT_CHARACTERS = 3500
_IMAGE_REASONS = (
    "ErrImagePull",
    "ImagePullBackOff",
    "InvalidImageName",
    "ErrImageNeverPull",
    "ImageInspectError",
    "RegistryUnavailable",
)
_CONFIGURATION_REASONS = ("CreateContainerConfigError", "CreateContainerError", "RunContainerError")


@dataclass(frozen=True)
class ProcessFailure:
    """Failure of a process.

    Args:
        reason: One CamelCase word.
        text: The rest of a sentence that begins with the name of the process, without a full stop.
    """

    reason: str
    text: str


@dataclass(frozen=True)
class PodTermination:
    """End of a pod's main container, as reported by its node.

    Args:
        exit_code: None: the node reported none.
        reason: The container's, such as OOMKilled.
        message: The process's termination message, else the end of its log.
        pod_reason: The pod's own reason, such as Evicted.
        pod_message: The pod's own message.
        memory_limit: `limits.memory` of the container, verbatim; empty: unlimited.
    """

    exit_code: int | None
    reason: str = ""
    message: str = ""
    pod_reason: str = ""
    pod_message: str = ""
    node: str = ""
    memory_limit: str = ""


def describe_termination(termination: PodTermination) -> ProcessFailure:
    """Return why a process terminated that should have kept running."""
    if termination.reason == "OOMKilled":
        limit = termination.memory_limit
        exceeded = f"its limit of {limit}" if limit else "its node had left"
        return ProcessFailure("OutOfMemory", f"was killed: it needed more memory than {exceeded}")
    pod_message = truncate_middle(termination.pod_message)
    if termination.pod_reason == "Evicted":
        return ProcessFailure("Evicted", f"was evicted by its node: {pod_message or 'no reason given'}")
    if termination.pod_reason == "NodeLost":
        return ProcessFailure("NodeLost", f"was lost with its node {termination.node}".rstrip())
    if termination.exit_code is None:
        details = ": ".join(part for part in (termination.pod_reason, pod_message) if part)
        return ProcessFailure(
            "Lost", f"ended without an exit code; its node reported: {details or 'nothing'}"
        )
    error = last_error_line(termination.message)
    return ProcessFailure(
        "StorageFull" if termination.exit_code == ExitCode.STORAGE else "Crashed",
        _describe_exit_code(termination.exit_code) + (f": {error}" if error else ""),
    )


def permanent_failure_details(termination_message: str) -> str:
    """Return the cause of a permanent failure; empty: the process wrote no termination message and no log.

    Args:
        termination_message: The process's termination message, else the end of its log.
    """
    text = termination_message.strip()
    # The log is quoted only when the process wrote no termination message.
    return last_error_line(text) if text.startswith("{") else truncate_middle(text, _MAX_PERMANENT_CHARACTERS)


def describe_waiting_container(reason: str, message: str) -> ProcessFailure | None:
    """Return why a waiting container cannot start; None: nothing is known to block it.

    Args:
        reason: The kubelet's reason, such as ImagePullBackOff.
        message: The kubelet's message.
    """
    if reason in _IMAGE_REASONS:
        # The kubelet alternates between ErrImagePull and ImagePullBackOff for one failure.
        _, _, details = message.rpartition("ErrImagePull: ")
        return ProcessFailure("ImagePull", f"cannot get its image: {truncate_middle(details) or reason}")
    if reason in _CONFIGURATION_REASONS:
        return ProcessFailure("BadConfiguration", f"cannot be started: {truncate_middle(message) or reason}")
    return None


def describe_unscheduled(reason: str, message: str, queue: str) -> ProcessFailure | None:
    """Return why a pod has no node; None: it is about to be scheduled.

    Args:
        reason: The reason of the pod's condition PodScheduled, whose status is False.
        message: The message of that condition.
        queue: Kueue's queue of the pod; empty: unknown.
    """
    if reason == "SchedulingGated":
        return ProcessFailure("Queued", f"waits until {f'queue {queue}' if queue else 'its queue'} admits it")
    if reason == "Unschedulable":
        return ProcessFailure("Unschedulable", f"fits on no node: {truncate_middle(message)}")
    return None


def _describe_exit_code(code: int) -> str:
    if code == ExitCode.STOPPED:
        return "was stopped by SIGTERM"
    if code == ExitCode.REPLACED:
        return "ended because another driver with a higher fence has taken over"
    if code == ExitCode.STORAGE:
        return "waits for storage, which is full or does not answer"
    if code > 128:
        try:
            return f"was killed by {signal.Signals(code - 128).name}"
        except ValueError:
            pass
    return f"ended with code {code}"
