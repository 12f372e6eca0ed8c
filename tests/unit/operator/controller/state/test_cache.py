"""The caches: newer versions win, own writes are visible at once, dependents are notified."""

import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

from kubealign.kube.documents import UnreadableObject
from kubealign_operator.controller.kube.ownership import JobKey
from kubealign_operator.controller.state.cache import JobStore, PodStore

Json = dict[str, Any]


class Told(list[str]):
    def __call__(self, key: JobKey) -> None:
        self.append(str(key))

    def since(self) -> list[str]:
        notified = sorted(self)
        self.clear()
        return notified


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


ONE = JobKey("team", "one")


def _phase(jobs: JobStore) -> str:
    job = jobs.get(ONE)
    assert job is not None
    return job.phase


def test_an_older_version_is_ignored() -> None:
    notified = Told()
    jobs = JobStore(notified)
    jobs.put(_job("one", 9, "Running"))
    jobs.put(_job("one", 5, "Starting"))
    assert (_phase(jobs), notified) == ("Running", ["team/one"])
    jobs.remove(_job("one", 7))
    assert jobs.get(ONE) is not None
    jobs.remove(_job("one", 10))
    assert jobs.get(ONE) is None


def test_unused_metadata_is_removed() -> None:
    jobs = JobStore(Told())
    jobs.put(_job("one", 1))
    tracked = jobs.get(ONE)
    assert tracked is not None
    document = tracked.document()
    assert "managedFields" not in document["metadata"]
    assert document["metadata"]["annotations"] == {"kept": "yes"}
    assert document["spec"] == _job("one", 1)["spec"]


def test_own_writes_are_visible_and_their_echo_is_ignored() -> None:
    notified = Told()
    jobs = JobStore(notified)
    jobs.put(_job("one", 1))
    notified.clear()
    jobs.record_write(_job("one", 4, "Starting"))
    assert _phase(jobs) == "Starting"
    jobs.put(_job("one", 4, "Starting"))
    assert not notified


def test_an_answer_older_than_the_watch_is_ignored() -> None:
    """The job was deleted after the operator's write, and the watch delivered this before the answer."""
    jobs = JobStore(Told())
    jobs.put(_job("one", 1))
    jobs.remove(_job("one", 8))
    jobs.advance_to(None, 8)
    jobs.record_write(_job("one", 5, "Starting"))
    assert jobs.get(ONE) is None


def test_a_list_removes_missing_older_jobs_only() -> None:
    notified = Told()
    jobs = JobStore(notified)
    jobs.put(_job("old", 1))
    jobs.put(_job("one", 2))
    jobs.put(_job("young", 12))
    notified.clear()
    jobs.sweep(None, {"uid-one"}, 10)
    assert sorted(str(key) for key, _ in jobs.items()) == ["team/one", "team/young"]
    assert notified == ["team/old"]


def test_a_list_of_one_namespace_keeps_other_namespaces() -> None:
    jobs = JobStore(Told())
    jobs.put(_job("one", 1))
    jobs.sweep("other", set(), 10)
    assert jobs.get(ONE) is not None


def test_dependents_are_notified() -> None:
    notified = Told()
    jobs = JobStore(notified)
    jobs.put(_job("two", 1, needs="one"))
    notified.clear()
    jobs.put(_job("one", 2))
    assert notified.since() == ["team/one", "team/two"]
    jobs.record_write(_job("one", 3, "Succeeded"))
    assert notified.since() == ["team/two"]
    jobs.remove(_job("two", 4))
    notified.clear()
    jobs.put(_job("one", 5, "Failed"))
    assert notified.since() == ["team/one"]


def test_pods_are_indexed_by_job() -> None:
    notified = Told()
    pods = PodStore(notified)
    pods.put(_pod("one-b", 1))
    pods.put(_pod("one-a", 2))
    pods.put(_pod("two-a", 3, job="two"))
    assert [view.name for view in pods.of_job(ONE)] == ["one-a", "one-b"]
    assert notified.since() == ["team/one", "team/one", "team/two"]


def test_an_unchanged_pod_view_notifies_nobody() -> None:
    notified = Told()
    pods = PodStore(notified)
    pods.put(_pod("one-a", 1))
    notified.clear()
    pods.put(_pod("one-a", 2))
    assert not notified
    pods.put(_pod("one-a", 3, phase="Running"))
    assert notified == ["team/one"]


def test_a_late_answer_does_not_restore_a_deleted_pod() -> None:
    pods = PodStore(Told())
    pods.put(_pod("one-a", 4))
    pods.remove(_pod("one-a", 6))
    pods.advance_to(None, 6)
    pods.record_write(_pod("one-a", 3))
    assert pods.of_job(ONE) == ()


def test_a_late_removal_keeps_the_successor_pod() -> None:
    pods = PodStore(Told())
    pods.put(_pod("one-a", 4))
    pods.record_write(_pod("one-a", 9, uid="next"))
    pods.remove(_pod("one-a", 6))
    assert [view.uid for view in pods.of_job(ONE)] == ["next"]


def test_an_unreadable_job_is_known_by_its_metadata_and_recovers() -> None:
    jobs = JobStore(Told())
    jobs.put(UnreadableObject(_job("one", 1, needs="base"), "spec.a is nested too deeply"))
    job = jobs.get(ONE)
    assert job is not None
    assert (job.uid, job.unreadable) == ("uid-one", "spec.a is nested too deeply")
    assert job.dependencies == frozenset()
    # The answer to the operator's status patch: the spec is the same.
    jobs.record_write(UnreadableObject(_job("one", 2, "Pending"), "spec.a is nested too deeply"))
    job = jobs.get(ONE)
    assert job is not None
    assert (job.phase, job.unreadable) == ("Pending", "spec.a is nested too deeply")
    changed = _job("one", 3, "Pending", needs="base")
    changed["metadata"]["generation"] = 2
    jobs.put(changed)
    job = jobs.get(ONE)
    assert job is not None
    assert (job.dependencies, job.unreadable) == ({"base"}, "")


def test_labels_and_annotations_follow_changes_without_a_new_generation() -> None:
    jobs = JobStore(Told())
    jobs.put(_job("one", 1))
    changed = _job("one", 2)
    changed["metadata"]["annotations"]["kept"] = "no"
    jobs.put(changed)
    job = jobs.get(ONE)
    assert job is not None
    assert job.document()["metadata"]["annotations"]["kept"] == "no"


def _retained_bytes(store: Callable[[Json], None], items: Iterator[Json]) -> int:
    """Return the memory that `store` keeps of the items."""
    tracemalloc.start()
    try:
        for item in items:
            store(item)
        item = {}
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


def test_large_specs_and_annotations_take_little_memory() -> None:
    def items() -> Iterator[Json]:
        for number in range(8):
            item = _job(f"job-{number}", number + 1)
            item["metadata"]["annotations"] = {str(key): "note" for key in range(2_000)}
            rows = [{"prompt": f"{row} + {row} =", "answer": str(2 * row)} for row in range(2_000)]
            item["spec"]["data"] = {"prompts": {"source": {"values": rows}}}
            yield item

    documents: list[Json] = []
    jobs = JobStore(Told())
    assert 10 * _retained_bytes(jobs.put, items()) < _retained_bytes(documents.append, items())
    job = jobs.get(JobKey("team", "job-3"))
    assert job is not None
    assert job.document()["spec"] == documents[3]["spec"]


def test_only_gpus_of_pods_on_a_node_that_have_not_ended_are_in_use() -> None:
    pods = PodStore(Told())
    main = {"name": "main", "resources": {"limits": {"nvidia.com/gpu": "4"}}}
    for name, phase, node in (("a", "Running", "n"), ("b", "Pending", ""), ("c", "Failed", "n")):
        pods.put({**_pod(name, 1, phase=phase), "spec": {"nodeName": node, "containers": [main]}})
    pods.put({**_pod("d", 1, phase="Running"), "spec": {"nodeName": "n", "containers": [{"name": "main"}]}})
    assert list(pods.gpus()) == [("team", 4)]


def test_a_job_that_another_cluster_runs_is_known_without_its_spec() -> None:
    jobs = JobStore(Told())
    dispatched = _job("one", 5)
    dispatched["spec"]["managedBy"] = "kueue.x-k8s.io/multikueue"
    jobs.put(dispatched)
    jobs.put(_job("two", 6))
    assert {key.name: job.is_dispatched for key, job in jobs.items()} == {"one": True, "two": False}
