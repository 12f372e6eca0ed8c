"""The restart policy: failed units restart as a whole, with backoff, within a budget."""

from collections.abc import Callable

import pytest

from kubealign.process_settings import ExitCode
from kubealign_operator.kube_views.observed_job import DependencyView, DriverProgress, VolumePath
from kubealign_operator.planner.plan import KubeEventType
from support.rendering.cluster import START, Cluster, written
from support.rendering.jobs import ppo, sft, two_ranks


def _running(job: dict[str, object]) -> Cluster:
    cluster = Cluster(job)
    cluster.start()
    assert cluster.phase == "Running"
    return cluster


def test_a_failed_rank_restarts_its_whole_group() -> None:
    cluster = _running(two_ranks())
    cluster.pass_time(100)
    cluster.end("two-ranks-trainer-1-0", 1, "RuntimeError: NCCL timed out")
    rendered = cluster.step()
    # The attempt is recorded once, before any pod is recreated.
    assert cluster.job["status"]["attempts"] == {"trainer": 1}
    assert cluster.job["status"]["restarts"] == 1
    assert [(pod.name, pod.grace_seconds) for pod in rendered.delete] == [("two-ranks-trainer-0-0", 1)]
    assert rendered.create == ()
    assert cluster.message == (
        "trainer-1 ended with code 1: RuntimeError: NCCL timed out; starting trainer again "
        "(1 of 10 restarts used)"
    )
    assert cluster.phase == "Running"
    cluster.settle()
    cluster.finish_leaving()
    cluster.pass_time(1)
    cluster.settle()
    assert cluster.made[-2:] == ["two-ranks-trainer-0-1", "two-ranks-trainer-1-1"]
    for name in cluster.made[-2:]:
        assert cluster.pods[name]["metadata"]["labels"]["kubealign.dev/attempt"] == "1"
    cluster.serve()
    cluster.settle()
    assert cluster.message == ""
    assert cluster.job["status"]["restarts"] == 1
    assert [event.reason for event in cluster.events if event.type is KubeEventType.WARNING] == [
        "Crashed",
        "Restarted",
    ]


@pytest.mark.parametrize(("attempt", "seconds"), [(1, 0.5), (2, 1.0), (4, 4.0), (7, 30.0), (9, 30.0)])
def test_the_backoff_grows(attempt: int, seconds: float) -> None:
    cluster = _running(sft())
    cluster.job["status"]["attempts"] = {"trainer-0": attempt - 1}
    cluster.pods[cluster.name("trainer-0")]["metadata"]["labels"]["kubealign.dev/attempt"] = str(attempt - 1)
    cluster.pass_time(10)
    cluster.end(cluster.name("trainer-0"), 1)
    rendered = cluster.step()
    assert rendered.delete == ()
    assert rendered.requeue_after == pytest.approx(seconds, abs=0.1)
    cluster.pass_time(seconds)
    rendered = cluster.step()
    # The failed pod is kept for its log.
    assert rendered.delete == ()
    assert [pod["metadata"]["name"] for pod in rendered.create] == [f"sft-trainer-0-{attempt}"]


def test_a_minute_of_uptime_resets_the_backoff() -> None:
    cluster = _running(sft())
    cluster.job["status"]["attempts"] = {"trainer-0": 7}
    cluster.pods[cluster.name("trainer-0")]["metadata"]["labels"]["kubealign.dev/attempt"] = "7"
    cluster.pass_time(61)
    cluster.end(cluster.name("trainer-0"), 1)
    assert cluster.step().requeue_after == pytest.approx(0.5, abs=0.1)


def test_a_replaced_driver_restarts_outside_the_budget() -> None:
    cluster = _running(sft(lifecycle={"maxRestarts": 0}))
    cluster.pass_time(40)
    uid = cluster.pods[cluster.name("driver")]["metadata"]["uid"]
    cluster.end(cluster.name("driver"), ExitCode.REPLACED)
    cluster.settle()
    cluster.pass_time(2)
    cluster.settle()
    assert cluster.pods[cluster.name("driver")]["metadata"]["uid"] != uid
    assert (cluster.phase, cluster.job["status"].get("restarts", 0)) == ("Running", 0)


def test_an_exhausted_budget_fails_the_job() -> None:
    cluster = _running(sft(lifecycle={"maxRestarts": 2}))
    for _ in range(3):
        assert cluster.phase == "Running"
        cluster.pass_time(40)
        _crash(cluster)
    assert cluster.phase == "Failed"
    assert cluster.message == (
        "trainer-0 ended with code 1: ValueError: x; all 2 restarts are used up (lifecycle.maxRestarts)"
    )
    assert cluster.job["status"]["restarts"] == 2


def _crash(cluster: Cluster) -> None:
    """End the trainer, and let its successor serve if the job goes on."""
    cluster.end(cluster.name("trainer-0"), 1, "ValueError: x")
    cluster.settle()
    cluster.pass_time(40)
    cluster.settle()
    if cluster.phase == "Running":
        cluster.serve()
        cluster.settle()


def _crash_at(cluster: Cluster, step: int) -> None:
    cluster.progress = DriverProgress(step=step)
    cluster.pass_time(100)
    cluster.settle()
    _crash(cluster)


def test_progress_refills_the_budget() -> None:
    cluster = _running(sft(maxSteps=1000, lifecycle={"maxRestarts": 2}))
    for step in (10, 20, 70, 80, 130, 140, 190):
        _crash_at(cluster, step)
        assert cluster.phase == "Running", step
    assert cluster.job["status"]["restarts"] == 1
    assert cluster.job["status"]["restartsSinceStep"] == 190


def test_a_job_that_repeats_the_same_steps_makes_no_progress() -> None:
    """Check a crash at the same step, just before the checkpoint of step 50 is saved."""
    cluster = _running(sft(maxSteps=1000, lifecycle={"maxRestarts": 2}))
    for _ in range(4):
        cluster.progress = DriverProgress(step=3)
        cluster.settle()
        _crash_at(cluster, 50)
    assert cluster.phase == "Failed"


def test_a_budget_of_zero_fails_the_job_at_once() -> None:
    cluster = _running(sft(lifecycle={"maxRestarts": 0}))
    cluster.end(cluster.name("nats"), 139)
    cluster.settle()
    assert cluster.message == (
        "nats was killed by SIGSEGV; the job allows no restart (lifecycle.maxRestarts)"
    )


def test_a_permanent_failure_fails_the_job_with_the_processs_message() -> None:
    cluster = _running(sft())
    cluster.end(cluster.name("trainer-0"), 78, "spec.policy.model: /volumes/models/base has no config.json")
    cluster.settle()
    assert cluster.phase == "Failed"
    assert cluster.message == "trainer-0: spec.policy.model: /volumes/models/base has no config.json"
    assert cluster.condition("Failed")["reason"] == "PermanentFailure"
    assert cluster.job["status"]["restarts"] == 0


def test_a_late_permanent_failure_of_a_replaced_rank_still_counts() -> None:
    cluster = _running(two_ranks())
    cluster.end("two-ranks-trainer-1-0", 1)
    cluster.step()
    cluster.end("two-ranks-trainer-0-0", 78, "the disk is full")
    cluster.settle()
    assert (cluster.phase, cluster.message) == ("Failed", "trainer-0: the disk is full")


def _shut_down(cluster: Cluster, name: str) -> None:
    """End a pod as a node does that shuts down: it sends SIGTERM, then sets reason and condition."""
    cluster.end(name, 143)
    cluster.pods[name]["status"] |= {"phase": "Failed", "reason": "Terminated"}
    cluster._condition(cluster.pods[name], "DisruptionTarget", "True", "TerminationByKubelet")


def _preempt_without_condition(cluster: Cluster, name: str) -> None:
    cluster.pods[name]["status"] = {"phase": "Failed", "reason": "Preempting", "message": "critical pod"}


@pytest.mark.parametrize("disrupt", [_shut_down, _preempt_without_condition])
def test_disruptions_never_spend_the_budget(disrupt: Callable[[Cluster, str], None]) -> None:
    cluster = _running(sft(lifecycle={"maxRestarts": 0}))
    for _ in range(3):
        cluster.pass_time(100)
        disrupt(cluster, cluster.name("trainer-0"))
        cluster.step()
        assert "starting trainer-0 again (not counted)" in cluster.message
        cluster.settle()
        cluster.pass_time(40)
        cluster.settle()
        cluster.serve()
        cluster.settle()
    assert (cluster.phase, cluster.message) == ("Running", "")
    assert cluster.job["status"]["restarts"] == 0
    assert cluster.job["status"]["attempts"] == {"trainer-0": 3}


def test_a_process_that_waits_for_storage_is_not_counted() -> None:
    cluster = _running(sft(lifecycle={"maxRestarts": 0}))
    cluster.end(cluster.name("trainer-0"), 74, "No space left on device at /volumes/runs/x")
    cluster.step()
    problem = (
        "trainer-0 waits for storage, which is full or does not answer: No space left on device at "
        "/volumes/runs/x; starting trainer-0 again (not counted)"
    )
    assert (cluster.phase, cluster.message) == ("Running", problem)
    assert cluster.condition("StorageFull")["status"] == "True"
    assert cluster.condition("StorageFull")["message"] == problem
    cluster.settle()
    cluster.pass_time(40)
    cluster.settle()
    cluster.serve()
    cluster.settle()
    assert (cluster.phase, cluster.message) == ("Running", "")
    assert cluster.condition("StorageFull")["status"] == "False"
    assert cluster.job["status"]["restarts"] == 0


def test_a_rank_that_crashes_after_a_disruption_of_another_is_not_counted() -> None:
    """Check the ranks that fail in their collectives because the node of another one shuts down."""
    cluster = _running(two_ranks())
    _shut_down(cluster, "two-ranks-trainer-1-0")
    cluster.end("two-ranks-trainer-0-0", 1, "RuntimeError: NCCL timed out")
    cluster.step()
    assert cluster.job["status"]["restarts"] == 0
    assert cluster.job["status"]["attempts"] == {"trainer": 1}


@pytest.mark.parametrize("process", ["trainer-0", "driver", "nats"])
def test_a_deleted_pod_is_recreated_without_counting(process: str) -> None:
    cluster = _running(sft())
    name = cluster.name(process)
    cluster.delete(name)
    cluster.settle()
    assert cluster.phase == "Running"
    # An evicted trainer ends when the driver has saved.
    cluster.finish_leaving()
    cluster.settle()
    assert cluster.job["status"]["restarts"] == 0
    assert cluster.made.count(f"sft-{process}-0") + cluster.made.count(f"sft-{process}-1") == 2
    cluster.serve()
    cluster.settle()
    assert cluster.message == ""


def test_a_deleted_rank_restarts_its_group_without_counting() -> None:
    cluster = _running(two_ranks())
    cluster.delete("two-ranks-trainer-0-0")
    assert [pod.name for pod in cluster.step().delete] == ["two-ranks-driver-0"]
    cluster.finish_leaving()
    cluster.settle()
    cluster.finish_leaving()
    cluster.settle()
    assert cluster.made[-2:] == ["two-ranks-trainer-0-1", "two-ranks-trainer-1-1"]
    assert "driver" in cluster.short_names()
    assert cluster.job["status"]["restarts"] == 0


def test_a_rank_that_vanished_unobserved_restarts_its_group() -> None:
    cluster = _running(two_ranks())
    cluster.vanish("two-ranks-trainer-1-0")
    assert [pod.name for pod in cluster.step().delete] == ["two-ranks-trainer-0-0"]


def test_a_group_that_was_never_complete_is_completed() -> None:
    cluster = Cluster(two_ranks())
    cluster.refusals["two-ranks-trainer-1-0"] = "exceeded quota: gpus"
    cluster.settle()
    cluster.serve()
    cluster.end("two-ranks-prepare-0", 0)
    for _ in range(3):
        cluster.step()
    cluster.serve()
    rendered = cluster.step()
    assert cluster.message == "trainer-1: its pod was refused: exceeded quota: gpus"
    assert [pod["metadata"]["name"] for pod in rendered.create] == ["two-ranks-trainer-1-0"]
    assert rendered.delete == ()
    cluster.refusals.clear()
    cluster.settle()
    assert "trainer-1" in cluster.short_names()
    assert "attempts" not in cluster.job["status"]


def test_preparation_is_retried_and_its_success_is_remembered() -> None:
    cluster = Cluster(sft())
    cluster.settle()
    cluster.serve()
    cluster.end(cluster.name("prepare"), 1, "OSError: the volume is away")
    cluster.settle()
    assert cluster.job["status"]["restarts"] == 1
    assert cluster.message.startswith(
        "prepare ended with code 1: OSError: the volume is away; starting prepare"
    )
    cluster.pass_time(1)
    cluster.settle()
    cluster.serve()
    cluster.end(cluster.name("prepare"), 0)
    cluster.settle()
    assert "trainer-0" in cluster.short_names()
    cluster.vanish(cluster.name("prepare"))
    cluster.settle()
    # No third attempt: the pod of the first one is kept for its log.
    assert [name for name in cluster.pods if "prepare" in name] == ["sft-prepare-0"]


def test_a_stale_status_does_not_replace_newer_pods() -> None:
    cluster = _running(sft())
    cluster.pass_time(10)
    cluster.end(cluster.name("trainer-0"), 1)
    cluster.settle()
    cluster.pass_time(1)
    cluster.settle()
    cluster.serve()
    cluster.settle()
    del cluster.job["status"]["attempts"]
    assert cluster.step().delete == ()
    assert cluster.job["status"]["attempts"] == {"trainer-0": 1}


def test_the_first_of_two_failed_ranks_is_reported() -> None:
    cluster = _running(two_ranks())
    for seconds, name in ((5, "two-ranks-trainer-1-0"), (5, "two-ranks-trainer-0-0")):
        cluster.pass_time(seconds)
        cluster.end(name, 1, name)
    cluster.step()
    restarted = next(event for event in cluster.events if event.reason == "Restarted")
    assert restarted.message.startswith("trainer-1 ended with code 1")
    assert cluster.job["status"]["restarts"] == 1


def test_deleting_a_dead_pod_ends_the_backoff() -> None:
    cluster = _running(sft())
    cluster.pass_time(5)
    cluster.end(cluster.name("trainer-0"), 1)
    cluster.step()
    cluster.vanish(cluster.name("trainer-0"))
    assert [pod["metadata"]["name"] for pod in cluster.step().create] == ["sft-trainer-0-1"]
    assert cluster.job["status"]["restarts"] == 1


def test_last_transition_time_changes_with_the_status_only() -> None:
    cluster = _running(sft())
    cluster.pass_time(500)
    cluster.end(cluster.name("trainer-0"), 1)
    cluster.step()
    assert cluster.condition("Ready")["lastTransitionTime"] == written(cluster.now)
    assert cluster.condition("Accepted")["lastTransitionTime"] == written(START)


def test_ranks_restart_together_after_the_last_old_pod_is_gone() -> None:
    cluster = _running(two_ranks())
    cluster.pass_time(5)
    cluster.end("two-ranks-trainer-0-0", 1)
    cluster.step()
    cluster.pass_time(5)
    cluster.settle()
    assert cluster.name("trainer-0") == "two-ranks-trainer-0-0"
    assert "deletionTimestamp" in cluster.pods["two-ranks-trainer-1-0"]["metadata"]
    cluster.finish_leaving()
    cluster.settle()
    assert cluster.made[-2:] == ["two-ranks-trainer-0-1", "two-ranks-trainer-1-1"]


def test_a_surplus_worker_cannot_fail_the_job() -> None:
    done = DependencyView("sft", "1", phase="Succeeded", result=VolumePath("runs", "x"))
    cluster = Cluster(ppo(), dependencies={"sft": done})
    cluster.start()
    cluster.job["spec"]["rollout"] = {"replicas": 2, "minReplicas": 2}
    cluster.settle()
    cluster.end("ppo-rollout-2-0", 78, "no more work")
    cluster.settle()
    assert cluster.phase == "Running"
