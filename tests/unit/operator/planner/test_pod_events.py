"""Events about pods: why each of them is replaced, deleted or stopped."""

from typing import Any

import pytest

from kubealign.process_settings import ExitCode
from kubealign_operator.planner.plan import KubeEventType, ReconcilePlan
from support.rendering.cluster import Cluster
from support.rendering.jobs import sft, shared_workers, two_ranks

_RESTARTED = "trainer-1 ended with code 1; starting trainer again (1 of 10 restarts used)"


def _running(job: dict[str, Any]) -> Cluster:
    cluster = Cluster(job)
    cluster.start()
    cluster.pass_time(100)
    assert cluster.phase == "Running"
    return cluster


def _events(plan: ReconcilePlan) -> dict[str, tuple[str, str]]:
    """Return reason and message of the events by the pod."""
    events = {event.pod.name: (event.reason, event.message) for event in plan.pod_events if event.pod}
    assert len(events) == len(plan.pod_events), "one event for each pod"
    return events


def test_all_pods_of_a_group_that_restarts_have_the_event_of_the_job() -> None:
    cluster = _running(two_ranks())
    cluster.end("two-ranks-trainer-1-0", 1)
    plan = cluster.step()
    assert _events(plan) == {
        "two-ranks-trainer-0-0": ("Restarted", _RESTARTED),
        "two-ranks-trainer-1-0": ("Restarted", _RESTARTED),
    }
    uids = {event.pod.uid for event in plan.pod_events if event.pod}
    assert uids == {cluster.pods[name]["metadata"]["uid"] for name in _events(plan)}
    assert {event.type for event in plan.pod_events} == {KubeEventType.WARNING}
    assert [event.message for event in plan.events if event.reason == "Restarted"] == [_RESTARTED]
    assert all(event.pod is None for event in plan.events)
    # Each pod has it once.
    assert cluster.step().pod_events == ()


def test_the_pods_beside_a_deleted_one_say_why_they_restart() -> None:
    cluster = _running(two_ranks())
    cluster.delete("two-ranks-trainer-1-0")
    saving = "trainer-1 is terminating: the driver saves a checkpoint"
    assert _events(cluster.step()) == {"two-ranks-driver-0": ("Ending", saving)}
    cluster.vanish("two-ranks-driver-0")
    reason = ("Restarted", "trainer-1 is terminating; starting trainer again (not counted)")
    assert _events(cluster.step()) == {"two-ranks-trainer-0-0": reason, "two-ranks-trainer-1-0": reason}


def test_the_pods_beside_a_lost_one_say_why_they_restart() -> None:
    cluster = _running(two_ranks())
    cluster.vanish("two-ranks-trainer-1-0")
    assert _events(cluster.step()) == {
        "two-ranks-trainer-0-0": (
            "Restarted",
            "the pod of trainer-1 was deleted; starting trainer again (not counted)",
        )
    }


def test_a_replaced_driver_says_so() -> None:
    cluster = _running(sft())
    cluster.end("sft-driver-0", ExitCode.REPLACED)
    ((reason, message),) = _events(cluster.step()).values()
    assert reason == "Restarted"
    assert message.endswith("; starting driver again (not counted)")


def test_a_failed_pod_that_is_no_longer_kept_says_so() -> None:
    cluster = _running(sft())
    for _ in range(2):
        cluster.pass_time(100)
        cluster.end(cluster.name("trainer-0"), 1)
        plan = cluster.step()
        cluster.pass_time(31)
        cluster.settle()
        cluster.serve()
        cluster.settle()
    message = "trainer-0 has failed again: only its last failed pod is kept"
    assert _events(plan)["sft-trainer-0-0"] == ("Superseded", message)
    assert _events(plan)["sft-trainer-0-1"][0] == "Restarted"


def test_a_stale_pod_names_both_attempts() -> None:
    cluster = _running(sft())
    cluster.job["status"]["attempts"] = {"trainer-0": 2}
    assert _events(cluster.step()) == {
        "sft-trainer-0-0": ("Superseded", "attempt 2 of trainer-0 replaces attempt 0")
    }


def test_a_removed_worker_says_so() -> None:
    cluster = _running(shared_workers())
    cluster.job["spec"]["rollout"] |= {"replicas": 1, "minReplicas": 1}
    events = _events(cluster.step())
    assert events and {reason for reason, _ in events.values()} == {"ScaledDown"}
    assert all("rollout-1" in name for name in events)


def test_the_pods_of_a_suspended_job_repeat_its_message() -> None:
    cluster = _running(sft())
    cluster.job["spec"]["suspend"] = True
    assert _events(cluster.step()) == {
        "sft-driver-0": ("Suspending", "suspending: the driver saves a checkpoint")
    }
    cluster.finish_leaving()
    events = _events(cluster.step())
    assert {"sft-trainer-0-0", "sft-nats-0"} <= set(events)
    assert {reason for reason, _ in events.values()} == {"Suspending"}


@pytest.mark.parametrize(("code", "phase"), [(0, "Succeeded"), (int(ExitCode.PERMANENT), "Failed")])
def test_the_pods_that_stop_with_their_job_repeat_its_message(code: int, phase: str) -> None:
    cluster = _running(sft())
    cluster.end("sft-driver-0", code, "the data are empty")
    plan = cluster.step()
    assert cluster.phase == phase
    assert _events(plan) == dict.fromkeys(("sft-nats-0", "sft-trainer-0-0"), (phase, cluster.message))
    assert cluster.step().pod_events == ()


def test_a_pod_that_is_deleted_by_force_names_its_node() -> None:
    cluster = _running(sft(lifecycle={"forceDeleteLostPods": True}))
    cluster.delete("sft-trainer-0-0")
    cluster.vanish("sft-driver-0")
    cluster.settle()
    cluster.pass_time(200)
    (message,) = [message for reason, message in _events(cluster.step()).values() if reason == "NodeLost"]
    assert message.startswith("trainer-0 is force-deleted: its node node-1 has not confirmed")


def test_the_pods_of_a_renewal_say_so() -> None:
    cluster = _running(sft())
    cluster.job["metadata"]["annotations"] = {"kubealign.dev/renew-credentials": "1"}
    cluster.step()
    assert _events(cluster.step()) == {
        "sft-driver-0": ("CredentialsRenewal", "renewing credentials: the driver saves a checkpoint")
    }
