"""The caches: versions decide, own writes count at once, and those who need a job are told."""

from typing import Any

from kubealign_operator.controller.cache import Jobs, Pods
from kubealign_operator.controller.resources import Key

Json = dict[str, Any]


class Told(list[str]):
    def __call__(self, key: Key) -> None:
        self.append(str(key))

    def since(self) -> list[str]:
        told = sorted(self)
        self.clear()
        return told


def _job(name: str, version: int, phase: str = "", needs: str | None = None, uid: str | None = None) -> Json:
    model: Json = {"job": {"name": needs}} if needs else {"volume": {"claimName": "models"}}
    job: Json = {
        "metadata": {
            "name": name,
            "namespace": "team",
            "uid": uid or f"uid-{name}",
            "resourceVersion": str(version),
            "generation": 1,
            "managedFields": [{"manager": "kubectl"}],
            "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}", "kept": "yes"},
        },
        "spec": {"policy": {"model": model}},
    }
    if phase:
        job["status"] = {"phase": phase}
    return job


def _pod(name: str, version: int, job: str = "one", phase: str = "Pending", uid: str | None = None) -> Json:
    return {
        "metadata": {
            "name": name,
            "namespace": "team",
            "uid": uid or f"uid-{name}",
            "resourceVersion": str(version),
            "labels": {"kubealign.dev/job": job},
        },
        "status": {"phase": phase},
    }


ONE = Key("team", "one")


def _phase(jobs: Jobs) -> str:
    held = jobs.get(ONE)
    assert held is not None
    return held.phase


def test_nothing_older_replaces_what_is_there() -> None:
    told = Told()
    jobs = Jobs(told)
    jobs.put(_job("one", 9, "Running"))
    jobs.put(_job("one", 5, "Starting"))
    assert (_phase(jobs), told) == ("Running", ["team/one"])
    jobs.remove(_job("one", 7))
    assert jobs.get(ONE) is not None
    jobs.remove(_job("one", 10))
    assert jobs.get(ONE) is None


def test_what_nobody_reads_is_not_kept() -> None:
    jobs = Jobs(Told())
    jobs.put(_job("one", 1))
    held = jobs.get(ONE)
    assert held is not None
    assert "managedFields" not in held.job["metadata"]
    assert held.job["metadata"]["annotations"] == {"kept": "yes"}


def test_own_writes_count_at_once_and_their_echo_says_nothing() -> None:
    told = Told()
    jobs = Jobs(told)
    jobs.put(_job("one", 1))
    told.clear()
    jobs.written(_job("one", 4, "Starting"))
    assert _phase(jobs) == "Starting"
    jobs.put(_job("one", 4, "Starting"))
    assert not told


def test_an_answer_that_is_later_than_the_watch_is_not_believed() -> None:
    """The job was deleted after our write, and the watch told so before our answer came."""
    jobs = Jobs(Told())
    jobs.put(_job("one", 1))
    jobs.remove(_job("one", 8))
    jobs.reach(None, 8)
    jobs.written(_job("one", 5, "Starting"))
    assert jobs.get(ONE) is None


def test_a_list_ends_what_it_does_not_have_but_nothing_younger() -> None:
    told = Told()
    jobs = Jobs(told)
    jobs.put(_job("old", 1))
    jobs.put(_job("one", 2))
    jobs.put(_job("young", 12))
    told.clear()
    jobs.sweep(None, {"uid-one"}, 10)
    assert sorted(str(key) for key, _ in jobs.items()) == ["team/one", "team/young"]
    assert told == ["team/old"]


def test_a_list_of_one_namespace_ends_nothing_elsewhere() -> None:
    jobs = Jobs(Told())
    jobs.put(_job("one", 1))
    jobs.sweep("other", set(), 10)
    assert jobs.get(ONE) is not None


def test_those_who_need_a_job_are_told() -> None:
    told = Told()
    jobs = Jobs(told)
    jobs.put(_job("two", 1, needs="one"))
    told.clear()
    jobs.put(_job("one", 2))
    assert told.since() == ["team/one", "team/two"]
    jobs.written(_job("one", 3, "Succeeded"))
    assert told.since() == ["team/two"]
    jobs.remove(_job("two", 4))
    told.clear()
    jobs.put(_job("one", 5, "Failed"))
    assert told.since() == ["team/one"]


def test_pods_are_found_by_their_job() -> None:
    told = Told()
    pods = Pods(told)
    pods.put(_pod("one-b", 1))
    pods.put(_pod("one-a", 2))
    pods.put(_pod("two-a", 3, job="two"))
    assert [view.name for view in pods.of(ONE)] == ["one-a", "one-b"]
    assert told.since() == ["team/one", "team/one", "team/two"]


def test_a_pod_that_says_nothing_new_tells_nobody() -> None:
    told = Told()
    pods = Pods(told)
    pods.put(_pod("one-a", 1))
    told.clear()
    pods.put(_pod("one-a", 2))
    assert not told
    pods.put(_pod("one-a", 3, phase="Running"))
    assert told == ["team/one"]


def test_a_pod_that_was_deleted_before_our_answer_came_is_gone() -> None:
    pods = Pods(Told())
    pods.put(_pod("one-a", 4))
    pods.remove(_pod("one-a", 6))
    pods.reach(None, 6)
    pods.written(_pod("one-a", 3))
    assert pods.of(ONE) == ()


def test_a_removal_does_not_take_the_next_pod_of_the_name() -> None:
    pods = Pods(Told())
    pods.put(_pod("one-a", 4))
    pods.written(_pod("one-a", 9, uid="next"))
    pods.remove(_pod("one-a", 6))
    assert [view.uid for view in pods.of(ONE)] == ["next"]
