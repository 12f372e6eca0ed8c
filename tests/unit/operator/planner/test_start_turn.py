"""Jobs start one at a time: when a job takes its turn, keeps it, loses it and waits."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from kubealign_operator.kube_views.observed_job import StartingJob
from support.rendering.cluster import START, written
from support.rendering.jobs import PLATFORM, QUEUE, alignment_job, shared_workers
from support.rendering.starting_cluster import ONE_AT_A_TIME, StartingCluster, training

_FULL = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu"


def _at(seconds: float | None) -> datetime | None:
    return None if seconds is None else START + timedelta(seconds=seconds)


def _other(
    name: str, *, waits: float | None = None, holds: float | None = None, namespace: str = "team"
) -> StartingJob:
    """Return another job that waits for its turn or has it since so many seconds after the start."""
    return StartingJob(namespace, name, f"uid-{name}", _at(waits), _at(holds))


def _events(cluster: StartingCluster) -> list[str]:
    return [event.reason for event in cluster.events]


def test_without_the_setting_a_job_takes_no_turn() -> None:
    cluster = StartingCluster(training("mine"), platform=PLATFORM, starting=(_other("a", holds=0),))
    cluster.settle()
    assert cluster.processes() == {"nats"}
    cluster.start()
    assert (cluster.phase, cluster.turn) == ("Running", {})


def test_preparation_takes_no_turn_and_has_the_only_pod() -> None:
    cluster = StartingCluster(training("mine"), starting=(_other("a", holds=0),))
    cluster.settle()
    assert (cluster.short_names(), cluster.turn) == (["prepare"], {})
    assert (cluster.phase, cluster.message) == ("Starting", "waits for prepare to finish")


def test_the_turn_of_a_job_begins_after_preparation_and_ends_with_the_last_node() -> None:
    cluster = StartingCluster(training("mine"))
    cluster.prepare()
    assert cluster.turn == {"heldSince": written(START)}
    assert cluster.processes() == {"nats"}
    cluster.run(cluster.name("nats"))
    cluster.settle()
    assert cluster.processes() == {"nats", "trainer-0", "trainer-1"}
    cluster.schedule(cluster.name("trainer-0"))
    cluster.pass_time(5)
    cluster.settle()
    assert cluster.turn == {"heldSince": written(START)}
    cluster.schedule(cluster.name("trainer-1"))
    cluster.settle()
    assert cluster.turn == {"endedAt": written(cluster.now)}
    assert cluster.phase == "Starting"
    cluster.serve()
    cluster.settle()
    assert cluster.phase == "Running"
    assert "driver" in cluster.processes()


@pytest.mark.parametrize(
    ("starting", "message"),
    [
        ((_other("a", holds=0),), "waits for job a to start, position 1"),
        ((_other("a", waits=-1),), "waits for job a to start, position 2"),
        ((_other("a", holds=0), _other("b", waits=-5)), "waits for job a to start, position 2"),
        ((_other("a", holds=0), _other("b", waits=9)), "waits for job a to start, position 1"),
        ((_other("b", waits=-5), _other("a", waits=-9)), "waits for job a to start, position 3"),
        # The name decides between two that began to wait in the same second.
        ((_other("a", waits=0),), "waits for job a to start, position 2"),
        (
            (_other("a", holds=0, namespace="other"),),
            "waits for a job of another namespace to start, position 1",
        ),
    ],
)
def test_a_job_waits_for_those_before_it(starting: tuple[StartingJob, ...], message: str) -> None:
    cluster = StartingCluster(training("mine"), starting=starting)
    cluster.prepare()
    assert (cluster.phase, cluster.message) == ("Pending", message)
    assert cluster.processes() == set()
    assert cluster.turn == {"waitingSince": written(START)}
    assert cluster.condition("Ready")["reason"] == "WaitsForTurn"
    assert cluster.condition("Prepared")["status"] == "True"
    assert _events(cluster).count("WaitsForTurn") == 1
    cluster.pass_time(100)
    cluster.settle()
    assert cluster.turn == {"waitingSince": written(START)}


@pytest.mark.parametrize("later", [_other("a", waits=1), _other("z", waits=0)])
def test_the_first_of_the_queue_starts(later: StartingJob) -> None:
    cluster = StartingCluster(training("mine"), starting=(_other("b", holds=-1),))
    cluster.prepare()
    assert cluster.phase == "Pending"
    cluster.starting = (later,)
    cluster.start()
    assert cluster.phase == "Running"


def _short_of_a_node() -> StartingCluster:
    """Return a job that has its turn, and of which one of two ranks fits on no node."""
    cluster = StartingCluster(training("mine"))
    cluster.prepare()
    cluster.run(cluster.name("nats"))
    cluster.settle()
    cluster.run(cluster.name("trainer-0"))
    cluster.unschedulable(cluster.name("trainer-1"), _FULL)
    cluster.settle()
    assert (cluster.phase, cluster.condition("Ready")["reason"]) == ("Starting", "Unschedulable")
    return cluster


def test_a_turn_without_a_competitor_is_never_lost() -> None:
    cluster = _short_of_a_node()
    cluster.pass_time(10_000)
    cluster.settle()
    assert cluster.turn == {"heldSince": written(START)}
    assert cluster.processes() == {"nats", "trainer-0", "trainer-1"}


def test_a_turn_is_kept_for_its_time() -> None:
    cluster = _short_of_a_node()
    cluster.starting = (_other("b", waits=1),)
    cluster.pass_time(299)
    plan = cluster.settle()
    assert cluster.turn == {"heldSince": written(START)}
    assert plan.requeue_after == pytest.approx(1.05)


def test_a_turn_that_is_over_is_undone_and_the_job_goes_to_the_end_of_the_queue() -> None:
    cluster = _short_of_a_node()
    before = {key: cluster.job["status"].get(key) for key in ("restarts", "attempts")}
    cluster.starting = (_other("b", waits=1),)
    cluster.pass_time(300)
    plan = cluster.step()
    lost = f"no node for pod mine-trainer-1-0 within 300 s: trainer-1 fits on no node: {_FULL}"
    assert cluster.turn == {"lost": lost}
    assert (cluster.phase, cluster.message) == ("Pending", f"lost its turn to start: {lost}")
    assert sorted(deletion.name for deletion in plan.delete) == [
        "mine-nats-0", "mine-trainer-0-0", "mine-trainer-1-0",
    ]  # fmt: skip
    assert _events(cluster).count("StartTurnLost") == 1
    cluster.settle()
    # The pods that had a node are ending. The job is not in the queue yet.
    assert cluster.turn == {"lost": lost}
    assert cluster.message.startswith("waits for nats, trainer-0 to end, before it waits for its turn")
    cluster.pass_time(7)
    cluster.finish_leaving()
    cluster.starting = (_other("b", holds=300),)
    cluster.settle()
    assert cluster.turn == {"waitingSince": written(cluster.now), "lost": lost}
    assert cluster.message == f"waits for job b to start, position 1; lost its last turn: {lost}"
    assert {key: cluster.job["status"].get(key) for key in ("restarts", "attempts")} == before
    assert "Restarted" not in _events(cluster)
    cluster.starting = ()
    cluster.start()
    assert cluster.phase == "Running"
    assert set(cluster.turn) == {"endedAt"}
    assert {key: cluster.job["status"].get(key) for key in ("restarts", "attempts")} == before


def test_a_bus_that_does_not_start_loses_the_turn_and_is_named() -> None:
    cluster = StartingCluster(training("mine"))
    cluster.prepare()
    cluster.wait(cluster.name("nats"), "ImagePullBackOff", "not found")
    cluster.starting = (_other("b", waits=1),)
    cluster.pass_time(301)
    cluster.step()
    assert cluster.turn["lost"].startswith(
        "no node for pod mine-trainer-0-0, mine-trainer-1-0 within 300 s: nats"
    )


@pytest.mark.parametrize("now", [datetime.max, datetime.min], ids=["last", "first"])
def test_the_time_of_a_turn_is_counted_at_any_time(now: datetime) -> None:
    cluster = _short_of_a_node()
    cluster.now = now.replace(tzinfo=UTC)
    cluster.job["status"]["startTurn"] = {"heldSince": cluster.now.isoformat()}
    cluster.step()
    assert "heldSince" in cluster.turn


def test_many_pods_without_a_node_are_counted() -> None:
    cluster = StartingCluster(training("mine", ranks=8))
    cluster.prepare()
    cluster.run(cluster.name("nats"))
    cluster.settle()
    cluster.starting = (_other("b", waits=1),)
    cluster.pass_time(301)
    cluster.step()
    names = "mine-trainer-0-0, mine-trainer-1-0, mine-trainer-2-0 and 5 more"
    assert cluster.turn["lost"] == f"no node for pod {names} within 300 s"


def test_of_two_turns_the_later_one_ends() -> None:
    """Two operators may each have begun one around a change of their leader."""
    cluster = _short_of_a_node()
    cluster.starting = (_other("b", holds=1),)
    cluster.settle()
    assert "heldSince" in cluster.turn
    cluster.starting = (_other("a", holds=0),)
    cluster.step()
    assert cluster.turn == {"lost": "another job had its turn"}


def test_a_suspended_job_gives_up_its_turn_and_takes_another_at_its_resume() -> None:
    cluster = StartingCluster(training("mine"))
    cluster.start()
    assert (cluster.phase, set(cluster.turn)) == ("Running", {"endedAt"})
    cluster.job["spec"]["suspend"] = True
    cluster.settle()
    assert cluster.turn == {}
    for _ in range(3):
        cluster.finish_leaving()
        cluster.settle()
    assert cluster.phase == "Suspended"
    cluster.job["spec"]["suspend"] = False
    cluster.starting = (_other("a", holds=0),)
    cluster.settle()
    assert (cluster.phase, cluster.message) == ("Pending", "waits for job a to start, position 1")
    assert cluster.condition("Suspended")["reason"] == "Resumed"
    assert cluster.processes() == set()
    cluster.starting = ()
    cluster.start()
    assert cluster.phase == "Running"


@pytest.mark.parametrize("holds", [True, False])
def test_a_job_that_is_suspended_while_it_starts_keeps_no_other_waiting(holds: bool) -> None:
    cluster = StartingCluster(training("mine"), starting=() if holds else (_other("a", holds=0),))
    cluster.prepare()
    assert set(cluster.turn) == {"heldSince" if holds else "waitingSince"}
    cluster.job["spec"]["suspend"] = True
    cluster.step()
    assert cluster.turn == {}


@pytest.mark.parametrize("holds", [True, False])
def test_a_job_that_has_become_invalid_keeps_no_other_waiting(holds: bool) -> None:
    cluster = StartingCluster(training("mine"), starting=() if holds else (_other("a", holds=0),))
    cluster.prepare()
    cluster.unreadable = "the spec is not readable"
    cluster.step()
    assert cluster.condition("Accepted")["status"] == "False"
    assert cluster.turn == {}


def test_a_restart_in_a_job_that_runs_takes_no_turn() -> None:
    cluster = StartingCluster(training("mine"))
    cluster.start()
    cluster.starting = (_other("a", holds=0), _other("b", waits=0))
    cluster.end(cluster.name("trainer-0"), 1)
    for _ in range(3):
        cluster.pass_time(1000)
        cluster.settle()
        cluster.finish_leaving()
    assert {"mine-trainer-0-1", "mine-trainer-1-1"} <= set(cluster.pods)
    assert cluster.phase == "Running"


def test_a_job_that_runs_when_the_setting_comes_takes_no_turn() -> None:
    cluster = StartingCluster(training("mine"), platform=PLATFORM)
    cluster.start()
    cluster.platform, cluster.starting = ONE_AT_A_TIME, (_other("a", holds=0),)
    cluster.vanish(cluster.name("nats"))
    cluster.settle()
    assert (cluster.phase, cluster.turn) == ("Running", {})
    assert "nats" in cluster.processes()


def test_a_restart_before_the_job_runs_takes_no_other_turn() -> None:
    cluster = StartingCluster(training("mine"))
    cluster.prepare()
    cluster.run(cluster.name("nats"))
    cluster.settle()
    for rank in ("trainer-0", "trainer-1"):
        cluster.run(cluster.name(rank), ready=False)
    cluster.settle()
    assert (cluster.phase, set(cluster.turn)) == ("Starting", {"endedAt"})
    cluster.starting = (_other("a", holds=0),)
    cluster.end(cluster.name("trainer-0"), 1)
    for _ in range(3):
        cluster.pass_time(1000)
        cluster.settle()
        cluster.finish_leaving()
    assert {"mine-trainer-0-1", "mine-trainer-1-1"} <= set(cluster.pods)


def test_a_job_of_a_queue_of_kueue_takes_no_turn() -> None:
    job = alignment_job("mine", training("mine")["spec"], labels=QUEUE)
    cluster = StartingCluster(
        job, platform=replace(ONE_AT_A_TIME, uses_kueue=True), starting=(_other("a", holds=0),)
    )
    cluster.settle()
    assert "waits in queue align of Kueue" in cluster.message
    cluster.admit(next(iter(cluster.workloads)))
    cluster.start()
    assert (cluster.phase, cluster.turn) == ("Running", {})


def test_rollout_workers_above_the_minimum_start_after_the_turn() -> None:
    job = shared_workers(rollout={"replicas": 3, "minReplicas": 1})
    cluster = StartingCluster(job)
    cluster.prepare()
    cluster.run(cluster.name("nats"))
    cluster.settle()
    assert {name for name in cluster.processes() if "rollout" in name} == {"rollout-0"}
    for name in list(cluster.pods):
        if "prepare" not in name:
            cluster.schedule(name)
    cluster.settle()
    assert set(cluster.turn) == {"endedAt"}
    cluster.settle()
    assert {name for name in cluster.processes() if "rollout" in name} == {
        "rollout-0",
        "rollout-1",
        "rollout-2",
    }


def test_the_setting_also_orders_jobs_that_have_half_started() -> None:
    """A job that is starting when the setting comes into effect starts again in its turn."""
    cluster = StartingCluster(training("mine"), platform=PLATFORM)
    cluster.prepare()
    cluster.run(cluster.name("nats"))
    cluster.settle()
    cluster.run(cluster.name("trainer-0"))
    cluster.settle()
    cluster.platform, cluster.starting = ONE_AT_A_TIME, (_other("a", holds=0),)
    cluster.settle()
    cluster.finish_leaving()
    cluster.settle()
    assert (cluster.phase, cluster.processes()) == ("Pending", set())
    assert cluster.message == "waits for job a to start, position 1"


def test_a_job_whose_pods_all_have_nodes_when_the_setting_comes_is_left_alone() -> None:
    cluster = StartingCluster(training("mine"), platform=PLATFORM)
    cluster.prepare()
    cluster.run(cluster.name("nats"))
    cluster.settle()
    for rank in ("trainer-0", "trainer-1"):
        cluster.schedule(cluster.name(rank))
    cluster.platform, cluster.starting = ONE_AT_A_TIME, (_other("a", holds=0),)
    cluster.settle()
    assert set(cluster.turn) == {"endedAt"}
    assert cluster.processes() == {"nats", "trainer-0", "trainer-1"}


def test_without_the_setting_the_status_forgets_turns() -> None:
    cluster = StartingCluster(training("mine"), starting=(_other("a", holds=0),))
    cluster.prepare()
    assert cluster.turn
    cluster.platform = PLATFORM
    cluster.start()
    assert (cluster.phase, cluster.turn) == ("Running", {})


def test_the_start_deadline_runs_from_the_first_turn_on() -> None:
    cluster = StartingCluster(
        training("mine", lifecycle={"startDeadlineSeconds": 400}), starting=(_other("a", holds=0),)
    )
    cluster.prepare()
    # The time before the first turn does not count, as in a queue.
    cluster.pass_time(1000)
    cluster.settle()
    assert cluster.phase == "Pending"
    cluster.starting = (_other("b", waits=1001),)
    cluster.settle()
    cluster.pass_time(300)
    cluster.settle()
    assert (cluster.phase, "lost" in cluster.turn) == ("Pending", True)
    cluster.starting = (_other("b", holds=1300),)
    plan = cluster.settle()
    assert plan.requeue_after == pytest.approx(100.05)
    cluster.pass_time(101)
    cluster.step()
    assert (cluster.phase, cluster.turn) == ("Failed", {})
    assert cluster.message.startswith("the job has not started within 400 s (lifecycle.startDeadlineSeconds)")


def test_the_active_time_stands_still_while_a_job_waits() -> None:
    cluster = StartingCluster(training("mine"), starting=(_other("a", holds=0),))
    cluster.prepare()
    assert cluster.job["status"].get("activeSince") is None
    cluster.pass_time(3600)
    cluster.settle()
    assert cluster.job["status"].get("activeSeconds") is None


def test_an_operator_may_end_between_any_two_writes() -> None:
    """After the status that gives up a turn is written, another operator deletes the pods."""
    cluster = _short_of_a_node()
    cluster.starting = (_other("b", waits=1),)
    cluster.pass_time(300)
    cluster.job["status"] = cluster.rendered().status
    successor = cluster.forget()
    plan = successor.step()
    assert {deletion.name for deletion in plan.delete} >= {"mine-trainer-0-0", "mine-trainer-1-0"}


def test_a_pod_that_a_finalizer_keeps_does_not_keep_the_job_from_the_queue() -> None:
    cluster = _short_of_a_node()
    cluster.pods["mine-trainer-0-0"]["metadata"]["finalizers"] = ["example.org/audit"]
    cluster.starting = (_other("b", waits=1),)
    cluster.pass_time(300)
    cluster.settle()
    cluster.finish_leaving()
    cluster.settle()
    assert "waitingSince" in cluster.turn
    cluster.starting = ()
    cluster.start()
    assert cluster.phase == "Running"
    assert "mine-trainer-0-1" in cluster.pods
