"""Failures of processes, which operator and client describe with the same words."""

import pytest

from kubealign.process_failure import (
    PodTermination,
    ProcessFailure,
    describe_termination,
    describe_unscheduled,
    describe_waiting_container,
    permanent_failure_details,
)

_LOG = '{"level": "ERROR", "message": "step 3 failed"}\n{"level": "INFO", "message": "closing"}'


@pytest.mark.parametrize(
    ("termination", "reason", "text"),
    [
        (
            PodTermination(137, "OOMKilled", memory_limit="2Gi"),
            "OutOfMemory",
            "was killed: it needed more memory than its limit of 2Gi",
        ),
        (
            PodTermination(137, "OOMKilled"),
            "OutOfMemory",
            "was killed: it needed more memory than its node had left",
        ),
        (
            PodTermination(None, pod_reason="Evicted", pod_message="disk"),
            "Evicted",
            "was evicted by its node: disk",
        ),
        (PodTermination(137, pod_reason="Evicted"), "Evicted", "was evicted by its node: no reason given"),
        (PodTermination(None, pod_reason="NodeLost", node="n1"), "NodeLost", "was lost with its node n1"),
        (PodTermination(None, pod_reason="NodeLost"), "NodeLost", "was lost with its node"),
        (
            PodTermination(None, pod_reason="UnexpectedAdmissionError", pod_message="no device"),
            "Lost",
            "ended without an exit code; its node reported: UnexpectedAdmissionError: no device",
        ),
        (PodTermination(None), "Lost", "ended without an exit code; its node reported: nothing"),
        (PodTermination(3), "Crashed", "ended with code 3"),
        (PodTermination(1, message=_LOG), "Crashed", "ended with code 1: step 3 failed"),
        (PodTermination(143), "Crashed", "was stopped by SIGTERM"),
        (PodTermination(139), "Crashed", "was killed by SIGSEGV"),
        (PodTermination(255), "Crashed", "ended with code 255"),
    ],
)
def test_termination(termination: PodTermination, reason: str, text: str) -> None:
    assert describe_termination(termination) == ProcessFailure(reason, text)


def test_permanent_failure_quotes_the_whole_message_and_the_last_error_of_a_log() -> None:
    assert permanent_failure_details(" no\ncolumn \n") == "no\ncolumn"
    assert permanent_failure_details(_LOG) == "step 3 failed"
    assert permanent_failure_details("\n") == ""


@pytest.mark.parametrize(
    ("reason", "message", "text"),
    [
        ("ErrImagePull", "manifest unknown", "cannot get its image: manifest unknown"),
        ("ImagePullBackOff", "Back-off: ErrImagePull: denied", "cannot get its image: denied"),
        ("InvalidImageName", "", "cannot get its image: InvalidImageName"),
        ("CreateContainerConfigError", "no secret", "cannot be started: no secret"),
        ("ContainerCreating", "", None),
    ],
)
def test_waiting_container(reason: str, message: str, text: str | None) -> None:
    failure = describe_waiting_container(reason, message)
    assert (None if failure is None else failure.text) == text


def test_unscheduled_pod() -> None:
    assert describe_unscheduled("SchedulingGated", "", "team") == ProcessFailure(
        "Queued", "waits until queue team admits it"
    )
    assert describe_unscheduled("SchedulingGated", "", "") == ProcessFailure(
        "Queued", "waits until its queue admits it"
    )
    assert describe_unscheduled("Unschedulable", "0/3 nodes", "") == ProcessFailure(
        "Unschedulable", "fits on no node: 0/3 nodes"
    )
    assert describe_unscheduled("SchedulerError", "", "") is None
