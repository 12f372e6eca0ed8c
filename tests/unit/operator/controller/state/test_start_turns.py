"""Turns of several jobs: no two at a time in any order of events, each job gets one, and who is notified."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kubealign_operator.controller.kube.ownership import JobKey
from kubealign_operator.controller.state.cache import JobStore
from kubealign_operator.controller.state.start_turns import StartTurns
from kubealign_operator.planner.plan import ReconcilePlan
from support.rendering.cluster import START
from support.rendering.jobs import Json
from support.rendering.starting_cluster import StartingCluster, training

_NAMES = ("a", "b", "c")


@dataclass
class Operator:
    """An operator of several jobs with as many GPUs as `gpus`: one for each pod of a trainer.

    A reconcile is cut into its parts, `plan` and `execute`, so that those of different jobs interleave.
    """

    gpus: int
    jobs: dict[str, StartingCluster] = field(default_factory=dict)
    notified: set[str] = field(default_factory=set)
    versions: int = 0

    def __post_init__(self) -> None:
        for name in _NAMES:
            self.jobs[name] = StartingCluster(training(name))
            self.jobs[name].prepare_only()
        self.restart()

    def restart(self) -> None:
        """Begin as a new process: only what the API server has is left, also of unfinished reconciles."""
        self.turns = StartTurns(lambda key: self.notified.add(key.name))
        self.store = JobStore(lambda key: self.notified.add(key.name), self.turns.observe)
        for name, job in self.jobs.items():
            job.plan = None
            self._store(name)
        self.notified |= set(self.jobs)

    def plan(self, name: str) -> None:
        job = self.jobs[name]
        job.starting = self.turns.others(_key(name))
        plan = job.rendered()
        if self.turns.claim(_key(name), job.job["metadata"]["uid"], plan.status):
            job.plan = plan
        else:
            self.notified.add(name)

    def execute(self, name: str, *, is_answered: bool = True) -> None:
        """Execute the plan; without an answer of the API server the operator does not learn of it."""
        job = self.jobs[name]
        if job.plan is None:
            return
        plan: ReconcilePlan = job.step()
        if plan.create or plan.delete:
            self.notified.add(name)
        if is_answered:
            self._store(name)
            self.turns.confirm(_key(name))
        else:
            self.notified.add(name)

    def observe(self, name: str) -> None:
        """Deliver the watch's event."""
        self._store(name)

    def schedule(self) -> None:
        """Give nodes to pods while there are GPUs, let all pods with a node run, and preparation end."""
        for job in self.jobs.values():
            for name, pod in job.pods.items():
                if "deletionTimestamp" in pod["metadata"] or pod["status"]["phase"] != "Pending":
                    continue
                if "trainer" not in name or self.used() < self.gpus:
                    job.run(name)
                if "prepare" in name:
                    job.end(name, 0)
            self.notified.add(job.job["metadata"]["name"])

    def used(self) -> int:
        return sum(
            "trainer" in name and "nodeName" in pod["spec"] and pod["status"]["phase"] == "Running"
            for job in self.jobs.values()
            for name, pod in job.pods.items()
        )

    def pass_time(self, seconds: float) -> None:
        for job in self.jobs.values():
            job.pass_time(seconds)
        self.notified |= set(self.jobs)

    def remove_ending(self) -> None:
        for name, job in self.jobs.items():
            if job.finish_leaving():
                self.notified.add(name)

    def finish(self, name: str) -> None:
        job = self.jobs[name]
        if f"{name}-driver-0" in job.pods and job.pods[f"{name}-driver-0"]["status"]["phase"] == "Running":
            job.end(f"{name}-driver-0", 0)
            self.notified.add(name)

    def delete(self, name: str) -> None:
        """Delete the job with its pods."""
        job = self.jobs.pop(name, None)
        if job is not None:
            self.versions += 1
            self.store.remove({"metadata": {**job.job["metadata"], "resourceVersion": str(self.versions)}})

    def suspend(self, name: str) -> None:
        spec = self.jobs[name].job["spec"]
        spec["suspend"] = not spec.get("suspend", False)
        self.notified.add(name)

    def reconcile_notified(self) -> None:
        """Reconcile what a work queue would have in it."""
        names, self.notified = sorted(self.notified & set(self.jobs)), set()
        for name in names:
            self.plan(name)
            self.execute(name)

    def check(self) -> None:
        holders = [name for name, job in self.jobs.items() if "heldSince" in job.turn]
        assert len(holders) <= 1, holders
        for name, job in self.jobs.items():
            starts = "heldSince" in job.turn or "endedAt" in job.turn
            alive = [
                pod
                for pod, body in job.pods.items()
                if "prepare" not in pod and "deletionTimestamp" not in body["metadata"]
                and body["status"]["phase"] == "Pending" and "nodeName" not in body["spec"]
            ]  # fmt: skip
            is_started = job.phase in ("Running", "Suspending", "Succeeded")
            assert starts or is_started or not alive, (name, job.job["status"], alive)

    def _store(self, name: str) -> None:
        self.versions += 1
        job = self.jobs[name].job
        job["metadata"]["resourceVersion"] = str(self.versions)
        self.store.put({**job, "metadata": dict(job["metadata"])})


def _key(name: str) -> JobKey:
    return JobKey("team", name)


_actions = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["plan", "execute", "observe"]), st.sampled_from(_NAMES)),
        st.tuples(st.sampled_from(["unanswered", "finish", "suspend"]), st.sampled_from(_NAMES)),
        st.tuples(st.sampled_from(["schedule", "restart", "leave", "wait", "notified"]), st.just("")),
        st.tuples(st.just("delete"), st.sampled_from(_NAMES)),
    ),
    max_size=40,
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(actions=_actions, gpus=st.sampled_from([0, 1, 2, 3, 4]))
def test_no_two_jobs_have_a_turn_and_each_gets_one(actions: list[tuple[str, str]], gpus: int) -> None:
    operator = Operator(gpus)
    for action, name in actions:
        if name and name not in operator.jobs:
            continue
        match action:
            case "unanswered":
                operator.execute(name, is_answered=False)
            case "schedule":
                operator.schedule()
            case "restart":
                operator.restart()
            case "leave":
                operator.remove_ending()
            case "wait":
                operator.pass_time(200)
            case "notified":
                operator.reconcile_notified()
            case _:
                getattr(operator, action)(name)
        operator.check()
    # With two GPUs, enough for one job, every job runs in the end. Nothing is reconciled without a cause.
    operator.gpus = 2
    for name, job in operator.jobs.items():
        job.job["spec"]["suspend"] = False
        operator.observe(name)
        operator.notified.add(name)
        if job.plan is not None:
            operator.execute(name)
    for _ in range(60):
        if all(job.job["status"].get("phase") == "Succeeded" for job in operator.jobs.values()):
            break
        operator.reconcile_notified()
        operator.check()
        operator.schedule()
        operator.remove_ending()
        for name in operator.jobs:
            operator.finish(name)
        operator.pass_time(60)
    phases = {name: (job.phase, job.message) for name, job in operator.jobs.items()}
    assert all(phase == "Succeeded" for phase, _ in phases.values()), phases


def test_jobs_start_in_the_order_in_which_they_began_to_wait() -> None:
    operator = Operator(gpus=2)
    order: list[str] = []
    for name in ("c", "b", "a"):
        operator.plan(name)
        operator.execute(name)
        for job in operator.jobs.values():
            job.pass_time(1)
    operator.notified.clear()
    for _ in range(30):
        operator.schedule()
        operator.reconcile_notified()
        operator.remove_ending()
        for name, job in list(operator.jobs.items()):
            if job.phase == "Running" and name not in order:
                order.append(name)
            operator.finish(name)
        operator.pass_time(1)
    assert order == ["c", "b", "a"]


class Notified(list[str]):
    """Names of the notified jobs."""

    def __call__(self, key: JobKey) -> None:
        self.append(key.name)

    def since(self) -> list[str]:
        names = sorted(self)
        self.clear()
        return names


class _Jobs:
    """Jobs with turns, as the caches see them."""

    def __init__(self) -> None:
        self.notified = Notified()
        self.turns = StartTurns(self.notified)
        self.store = JobStore(lambda key: None, self.turns.observe)
        self._version = 0

    def put(
        self, name: str, *, deleting: bool = False, managed_by: str = "", uid: str = "", **turn: Any
    ) -> None:
        self._version += 1
        metadata: Json = {
            "namespace": "team",
            "name": name,
            "uid": uid or f"uid-{name}",
            "resourceVersion": str(self._version),
            "generation": self._version,
        }
        if deleting:
            metadata["deletionTimestamp"] = _time(0)
        spec = {"managedBy": managed_by} if managed_by else {}
        self.store.put({"metadata": metadata, "spec": spec, "status": {"startTurn": turn}})

    def remove(self, name: str) -> None:
        self._version += 1
        self.store.remove(
            {"metadata": {"namespace": "team", "name": name, "resourceVersion": str(self._version)}}
        )

    def claim(self, name: str, **turn: Any) -> bool:
        return self.turns.claim(_key(name), f"uid-{name}", {"startTurn": turn})

    def seen(self, by: str = "me") -> dict[str, str]:
        return {job.name: "holds" if job.held_since else "waits" for job in self.turns.others(_key(by))}


def _time(seconds: int) -> str:
    return (START + timedelta(seconds=seconds)).isoformat()


@pytest.fixture
def jobs() -> Iterator[_Jobs]:
    yield _Jobs()


def test_the_turns_of_all_other_jobs_are_observed(jobs: _Jobs) -> None:
    jobs.put("a", heldSince=_time(0))
    jobs.put("b", waitingSince=_time(1))
    jobs.put("c", endedAt=_time(2))
    assert jobs.seen() == {"a": "holds", "b": "waits"}
    assert jobs.seen(by="a") == {"b": "waits"}


@pytest.mark.parametrize(
    "change", [{"deleting": True}, {"managed_by": "kueue.x-k8s.io/multikueue"}, {"heldSince": "soon"}]
)
def test_a_job_that_does_not_start_here_is_left_out(jobs: _Jobs, change: dict[str, Any]) -> None:
    jobs.put("b", waitingSince=_time(1))
    jobs.put("a", heldSince=_time(0))
    jobs.notified.since()
    jobs.put("a", **{"heldSince": _time(0), **change})
    assert jobs.seen() == {"b": "waits"}
    assert jobs.notified.since() == ["b"]


@pytest.mark.parametrize("end", ["scheduled", "deleted"])
def test_the_end_of_a_turn_notifies_those_that_wait(jobs: _Jobs, end: str) -> None:
    for name in ("b", "c"):
        jobs.put(name, waitingSince=_time(1))
    jobs.put("a", heldSince=_time(0))
    jobs.notified.since()
    if end == "deleted":
        jobs.remove("a")
    else:
        jobs.put("a", endedAt=_time(2))
    assert jobs.notified.since() == ["b", "c"]


def test_a_job_that_begins_to_wait_notifies_the_one_that_has_the_turn(jobs: _Jobs) -> None:
    jobs.put("a", heldSince=_time(0))
    jobs.notified.since()
    jobs.put("b", waitingSince=_time(1))
    assert jobs.notified.since() == ["a"]
    jobs.put("b", waitingSince=_time(1), lost="another message")
    assert jobs.notified.since() == []


def test_no_more_than_the_first_of_a_long_queue_are_notified(jobs: _Jobs) -> None:
    jobs.put("a", heldSince=_time(0))
    for number in range(50):
        jobs.put(f"w{number:02}", waitingSince=_time(number))
    jobs.notified.since()
    jobs.remove("a")
    assert jobs.notified.since() == [f"w{number:02}" for number in range(20)]


def test_of_two_reconciles_at_the_same_time_one_begins_a_turn(jobs: _Jobs) -> None:
    assert jobs.claim("a", heldSince=_time(0))
    assert not jobs.claim("b", heldSince=_time(0))
    assert jobs.claim("b", waitingSince=_time(0))
    assert jobs.seen() == {"a": "holds", "b": "waits"}
    # Written, and planned again.
    jobs.put("a", heldSince=_time(0))
    jobs.turns.confirm(_key("a"))
    assert jobs.claim("a", heldSince=_time(0))


def test_a_turn_whose_write_got_no_answer_counts_until_its_job_is_planned_again(jobs: _Jobs) -> None:
    assert jobs.claim("a", heldSince=_time(0))
    assert not jobs.claim("b", heldSince=_time(1))
    assert jobs.claim("a")
    jobs.turns.confirm(_key("a"))
    assert jobs.claim("b", heldSince=_time(1))


def test_a_turn_counts_until_its_end_is_written(jobs: _Jobs) -> None:
    jobs.put("a", heldSince=_time(0))
    assert jobs.claim("a", endedAt=_time(1))
    assert not jobs.claim("b", heldSince=_time(1))
    jobs.put("a", endedAt=_time(1))
    assert jobs.claim("b", heldSince=_time(1))


def test_a_job_whose_reconcile_fails_keeps_no_other_waiting(jobs: _Jobs) -> None:
    jobs.put("a", waitingSince=_time(0))
    jobs.put("b", waitingSince=_time(1))
    jobs.notified.since()
    jobs.turns.exclude(_key("a"))
    assert jobs.seen(by="b") == {}
    assert jobs.notified.since() == ["b"]
    assert jobs.claim("a", waitingSince=_time(0))
    assert jobs.seen(by="b") == {"a": "waits"}


def test_a_successor_of_the_same_name_has_no_turn(jobs: _Jobs) -> None:
    assert jobs.claim("a", heldSince=_time(0))
    jobs.put("a", heldSince=_time(0))
    jobs.remove("a")
    jobs.put("a", uid="another")
    assert jobs.seen() == {}
