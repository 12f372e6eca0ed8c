"""Failure reasons of pods, as shown in the job's status."""

import json
from collections.abc import Callable
from datetime import timedelta

import pytest

from kubealign.termination_message import last_error_line, truncate_middle
from support.rendering.cluster import Cluster
from support.rendering.jobs import sft

_POD = "sft-trainer-0-0"


def _event(level: str, message: str, **more: str) -> str:
    return json.dumps({"time": "2026-03-01T12:00:00Z", "level": level, "message": message, **more})


def _limit(cluster: Cluster) -> None:
    cluster.pods[_POD]["spec"]["containers"][0]["resources"] = {"limits": {"memory": "2Gi"}}
    cluster.end(_POD, 137, reason="OOMKilled")


def _pod_failure(reason: str, message: str) -> Callable[[Cluster], None]:
    def happen(cluster: Cluster) -> None:
        cluster.pods[_POD]["status"] = {"phase": "Failed", "reason": reason, "message": message}

    return happen


def _disrupted(cluster: Cluster) -> None:
    cluster.delete(_POD)
    cluster._condition(cluster.pods[_POD], "DisruptionTarget", "True", "PreemptionByScheduler")


def _slow(cluster: Cluster) -> None:
    cluster.schedule(_POD)
    cluster.pods[_POD]["status"]["phase"] = "Pending"
    cluster.pass_time(60)


_CASES: dict[str, tuple[Callable[[Cluster], None], str, str]] = {
    "image": (
        lambda c: c.wait(
            _POD, "ErrImagePull", 'failed to pull image "kubealign/services:1": manifest unknown'
        ),
        "ImagePull",
        'trainer-0 cannot get its image: failed to pull image "kubealign/services:1": manifest unknown',
    ),
    "image again": (
        lambda c: c.wait(
            _POD,
            "ImagePullBackOff",
            'Back-off pulling image "kubealign/services:1": ErrImagePull: failed to pull image '
            '"kubealign/services:1": manifest unknown',
        ),
        "ImagePull",
        'trainer-0 cannot get its image: failed to pull image "kubealign/services:1": manifest unknown',
    ),
    "configuration": (
        lambda c: c.wait(_POD, "CreateContainerConfigError", 'secret "hub-token" not found'),
        "BadConfiguration",
        'trainer-0 cannot be started: secret "hub-token" not found',
    ),
    "unschedulable": (
        lambda c: c.unschedulable(_POD, "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."),
        "Unschedulable",
        "trainer-0 fits on no node: 0/3 nodes are available: 3 Insufficient nvidia.com/gpu.",
    ),
    "gated": (
        lambda c: c.unschedulable(_POD, "Scheduling is blocked", "SchedulingGated"),
        "Queued",
        "trainer-0 waits until its queue admits it",
    ),
    "memory": (
        _limit,
        "OutOfMemory",
        "trainer-0 was killed: it needed more memory than its limit of 2Gi; starting trainer-0 again "
        "(1 of 10 restarts used)",
    ),
    "memory of the node": (
        lambda c: c.end(_POD, 137, reason="OOMKilled"),
        "OutOfMemory",
        "trainer-0 was killed: it needed more memory than its node had left; starting trainer-0 again "
        "(1 of 10 restarts used)",
    ),
    "crash": (
        lambda c: c.end(_POD, 1, _event("info", "begun") + "\n" + _event("error", "no CUDA device")),
        "Crashed",
        "trainer-0 ended with code 1: no CUDA device; starting trainer-0 again (1 of 10 restarts used)",
    ),
    "kill": (
        lambda c: c.end(_POD, 137),
        "Crashed",
        "trainer-0 was killed by SIGKILL; starting trainer-0 again (1 of 10 restarts used)",
    ),
    "stopped": (
        lambda c: c.end(_POD, 143),
        "Crashed",
        "trainer-0 was stopped by SIGTERM; starting trainer-0 again (1 of 10 restarts used)",
    ),
    "ended for no reason": (
        lambda c: c.end(_POD, 0),
        "Crashed",
        "trainer-0 ended with code 0; starting trainer-0 again (1 of 10 restarts used)",
    ),
    "evicted": (
        _pod_failure("Evicted", "The node was low on resource: ephemeral-storage."),
        "Evicted",
        "trainer-0 was evicted by its node: The node was low on resource: ephemeral-storage.; starting "
        "trainer-0 again (1 of 10 restarts used)",
    ),
    "refused by its node": (
        _pod_failure("UnexpectedAdmissionError", "no device left"),
        "Lost",
        "trainer-0 ended without an exit code; its node reported: UnexpectedAdmissionError: no device left; "
        "starting trainer-0 again (1 of 10 restarts used)",
    ),
    "deleted": (
        lambda c: c.delete(_POD),
        "Ending",
        "trainer-0 is terminating: the driver saves a checkpoint",
    ),
    "preempted": (
        _disrupted,
        "Disrupted",
        "trainer-0 was preempted by a pod of higher priority: the driver saves a checkpoint",
    ),
    "slow": (
        _slow,
        "SlowStart",
        "trainer-0 has been on node node-1 for a minute without starting: its image or a volume is not "
        "available yet; see kubectl describe pod sft-trainer-0-0",
    ),
}


@pytest.mark.parametrize("case", _CASES)
def test_the_reason_is_shown_in_the_same_reconcile(case: str) -> None:
    happen, reason, message = _CASES[case]
    cluster = Cluster(sft())
    cluster.start()
    if case in ("unschedulable", "gated", "slow", "image", "image again", "configuration"):
        cluster.vanish(_POD)
        cluster.settle()
    happen(cluster)
    cluster.step()
    assert cluster.message == message
    assert (cluster.condition("Ready")["reason"], cluster.condition("Ready")["status"]) == (reason, "False")
    assert cluster.condition("Ready")["message"] == message
    writes, events = cluster.writes, len(cluster.events)
    cluster.step()
    # The driver ends first, which the status counts.
    assert cluster.writes == writes or reason in ("Ending", "Disrupted")
    assert len(cluster.events) == events


def test_a_slow_pod_is_requeued_in_time() -> None:
    cluster = Cluster(sft())
    cluster.start()
    cluster.vanish(_POD)
    cluster.settle()
    cluster.schedule(_POD)
    cluster.pass_time(20)
    assert cluster.rendered().requeue_after == pytest.approx(40, abs=1)


@pytest.mark.parametrize(
    ("is_forced", "message"),
    [
        (True, "trainer-0 is force-deleted: its node node-1 has not confirmed that it ended"),
        (
            False,
            "trainer-0 cannot be replaced: its node node-1 has not confirmed that pod sft-trainer-0-0 ended, "
            "so its processes may still run. Once the machine is known to be off, delete the Node object or "
            "give it the taint node.kubernetes.io/out-of-service=nodeshutdown:NoExecute; "
            "lifecycle.forceDeleteLostPods: true replaces the pod at once",
        ),
    ],
)
def test_an_unreachable_node_is_reported(is_forced: bool, message: str) -> None:
    cluster = Cluster(sft(lifecycle={"forceDeleteLostPods": is_forced}))
    cluster.start()
    cluster.delete(_POD)
    cluster.now += timedelta(seconds=300)
    assert cluster.rendered().status["message"] == message


def test_a_refused_object_is_reported_first() -> None:
    cluster = Cluster(sft())
    cluster.refusals["sft-peers"] = "services is forbidden: exceeded quota"
    cluster.step()
    assert cluster.message == "sft-peers was refused: services is forbidden: exceeded quota"
    assert cluster.condition("Ready")["reason"] == "Refused"


@pytest.mark.parametrize(
    ("log", "words"),
    [
        ("", ""),
        ("\n \n", ""),
        ("Traceback (most recent call last):\nValueError: x\n", "ValueError: x"),
        (_event("info", "step 3"), "step 3"),
        (
            _event("error", "lost", exception="Traceback\nOSError: away") + "\n" + _event("info", "x"),
            "lost: OSError: away",
        ),
        (_event("error", "lost") + "\nSegmentation fault", "Segmentation fault"),
        ('message": "cut"}\n' + _event("critical", "no memory"), "no memory"),
        ('{"a": 1}', '{"a": 1}'),
        ("[" * 100_000, truncate_middle("[" * 100_000)),
    ],
)
def test_last_words(log: str, words: str) -> None:
    assert last_error_line(log) == words


def test_a_long_message_is_cut_in_the_middle() -> None:
    assert truncate_middle("a" * 50 + "b" * 50, 25) == "a" * 10 + " ... " + "b" * 10
