"""Jobs that MultiKueue dispatches to a worker cluster, with the operators of both clusters."""

import json
from dataclasses import replace
from typing import Any

import pytest

from kubealign.labels import PREBUILT_WORKLOAD_LABEL, RETRY_ANNOTATION
from kubealign_operator.kube_views.observed_job import DependencyView, VolumePath
from kubealign_operator.manifests.context import Platform
from support.rendering.cluster import Cluster, written
from support.rendering.jobs import PLATFORM, QUEUE, ppo, sft

Json = dict[str, Any]
KUEUE = replace(PLATFORM, uses_kueue=True)
_MULTIKUEUE = "kueue.x-k8s.io/multikueue"
_WORKER_UID = "0a1b2c3d-2b7c-4f6e-9a51-3d2b1c0a9e88"


def copied(document: Json) -> Json:
    value: Json = json.loads(json.dumps(document))
    return value


def dispatched(job: Json, platform: Platform = KUEUE, **labels: str) -> Cluster:
    """Return the manager cluster with a job of MultiKueue that has the label of its queue."""
    job["spec"]["managedBy"] = _MULTIKUEUE
    job["metadata"]["labels"] = {**job["metadata"].get("labels", {}), **QUEUE, **labels}
    cluster = Cluster(job, platform=platform)
    cluster.pod_priorities["research"] = 7
    return cluster


def workload(cluster: Cluster) -> str:
    (name,) = cluster.workloads
    return name


def worker_of(manager: Cluster, platform: Platform = KUEUE) -> Cluster:
    """Return a worker cluster with the copies that MultiKueue makes of the job and its Workload."""
    name = workload(manager)
    job = copied(manager.job)
    job.pop("status", None)
    job["metadata"]["uid"] = _WORKER_UID
    job["metadata"]["labels"] |= {PREBUILT_WORKLOAD_LABEL: name, "kueue.x-k8s.io/multikueue-origin": "origin"}
    del job["spec"]["managedBy"]
    source = copied(manager.workloads[name])
    metadata = {part: source["metadata"][part] for part in ("name", "namespace", "labels", "annotations")}
    metadata |= {"uid": "remote-workload", "resourceVersion": "1"}
    prebuilt = {**source, "metadata": metadata, "status": {}}
    return Cluster(job, platform=platform, workloads={name: prebuilt})


def started(manager: Cluster) -> Cluster:
    """Return the worker cluster of an admitted job that runs, with its status in the manager cluster."""
    manager.settle()
    name = workload(manager)
    manager.admit(name)
    worker = worker_of(manager)
    worker.admit(name)
    worker.start()
    assert worker.phase == "Running"
    copy_status(worker, manager)
    return worker


def copy_status(worker: Cluster, manager: Cluster) -> None:
    manager.job["status"] = copied(worker.job["status"])


def owners(cluster: Cluster) -> list[str]:
    (value,) = cluster.workloads.values()
    return [owner["uid"] for owner in value["metadata"].get("ownerReferences", [])]


def condition(cluster: Cluster, kind: str) -> tuple[str, str]:
    """Return status and reason of a condition of the only Workload; empty: it has none."""
    (value,) = cluster.workloads.values()
    conditions = value["status"].get("conditions", [])
    return next(((item["status"], item["reason"]) for item in conditions if item["type"] == kind), ("", ""))


def evict(cluster: Cluster, reason: str) -> None:
    cluster.evict(workload(cluster), reason, "for a test")
    for item in cluster.workloads[workload(cluster)]["status"]["conditions"]:
        item["lastTransitionTime"] = written(cluster.now)


# The manager cluster.


def stop_pods(worker: Cluster) -> None:
    """Let the pods that are leaving end, the driver first."""
    for _ in range(3):
        worker.finish_leaving()
        worker.settle()


def end_driver(worker: Cluster, code: int, message: str = "") -> None:
    """Let the driver exit with this code, and the other pods end."""
    worker.end(worker.name("driver"), code, message)
    worker.settle()
    worker.finish_leaving()
    worker.settle()


def test_the_manager_asks_for_the_same_quota_as_for_a_job_of_its_own() -> None:
    manager, own = (
        dispatched(ppo(policy={"model": {"volume": {"claimName": "models", "path": "base"}}})),
        None,
    )
    manager.settle()
    assert (manager.phase, manager.message) == ("Pending", "waits in queue align of Kueue")
    assert (manager.pods, manager.objects) == ({}, set())
    assert manager.condition("Accepted")["reason"] == "MultiKueue"
    job = copied(manager.job)
    del job["spec"]["managedBy"], job["status"]
    own = Cluster(job, platform=KUEUE)
    own.pod_priorities["research"] = 7
    own.settle()
    assert manager.workloads == own.workloads


def test_the_manager_says_that_a_worker_cluster_is_awaited() -> None:
    manager = dispatched(sft())
    manager.settle()
    manager.admit(workload(manager))
    for item in manager.workloads[workload(manager)]["status"]["conditions"]:
        if item["type"] == "Admitted":
            item["status"] = "False"
    manager.settle()
    assert manager.message == "has quota in queue align of Kueue, and waits for that of a worker cluster"


def test_a_status_that_is_copied_before_the_admission_is_kept() -> None:
    manager = dispatched(sft())
    manager.settle()
    manager.admit(workload(manager))
    for item in manager.workloads[workload(manager)]["status"]["conditions"]:
        if item["type"] == "Admitted":
            item["status"] = "False"
    worker = worker_of(manager)
    worker.admit(workload(worker))
    worker.settle()
    copy_status(worker, manager)
    before = copied(manager.job["status"])
    manager.settle()
    assert manager.job["status"] == before


def test_the_manager_makes_nothing_and_keeps_every_field_of_a_copied_status() -> None:
    manager = dispatched(sft())
    started(manager)
    manager.job["status"] |= {"step": 4, "fieldOfALaterVersion": {"a": 1}}
    before = copied(manager.job["status"])
    events = len(manager.events)
    manager.settle()
    assert manager.job["status"] == before
    assert (manager.pods, manager.objects, manager.events[events:]) == ({}, set(), [])


def test_a_suspended_job_gives_its_quota_back_after_the_worker_has_saved() -> None:
    manager = dispatched(sft())
    worker = started(manager)
    manager.job["spec"]["suspend"] = True
    manager.settle()
    name = workload(manager)
    assert condition(manager, "Evicted") == ("True", "JobSuspended")
    # MultiKueue deletes the copy at once where the spec has changed.
    assert manager.workloads[name]["spec"]["active"] is True
    assert manager.phase == "Running"
    worker.evict(name, "DeactivatedDueToEvictedOnManagerCluster", "Evicted on manager")
    worker.settle()
    assert worker.phase == "Suspending"
    copy_status(worker, manager)
    manager.settle()
    assert "admission" in manager.workloads[name]["status"]
    stop_pods(worker)
    assert worker.phase == "Pending"
    copy_status(worker, manager)
    manager.settle()
    assert manager.workloads == {}
    assert manager.phase == "Suspended"
    manager.job["spec"]["suspend"] = False
    manager.settle()
    assert condition(manager, "Evicted") == ("", "")
    assert manager.message.endswith("waits in queue align of Kueue")


def test_a_job_resumed_before_its_quota_was_returned_asks_with_a_new_workload() -> None:
    manager = dispatched(sft())
    started(manager)
    manager.job["spec"]["suspend"] = True
    manager.settle()
    manager.job["spec"]["suspend"] = False
    manager.job["status"]["phase"] = "Pending"
    manager.settle()
    assert condition(manager, "Evicted") == ("", "")
    assert "admission" not in manager.workloads[workload(manager)]["status"]


def test_the_manager_waits_a_limited_time_for_a_worker_that_does_not_answer() -> None:
    manager = dispatched(sft())
    started(manager)
    evict(manager, "Preempted")
    plan = manager.settle()
    assert "admission" in manager.workloads[workload(manager)]["status"]
    assert plan.requeue_after == pytest.approx(90.0, abs=1.0)
    manager.pass_time(91.0)
    manager.settle()
    assert "admission" not in manager.workloads[workload(manager)]["status"]
    assert (manager.phase, manager.condition("Suspended")["status"]) == ("Pending", "True")


@pytest.mark.parametrize("reason", ["AdmissionCheck", "Deactivated", "DeactivatedDueToAdmissionCheck"])
def test_a_worker_whose_job_kueue_deletes_at_once_is_not_waited_for(reason: str) -> None:
    manager = dispatched(sft())
    started(manager)
    evict(manager, reason)
    manager.settle()
    assert "admission" not in manager.workloads[workload(manager)]["status"]
    assert manager.phase == "Pending"


@pytest.mark.parametrize("evicted", [False, True])
@pytest.mark.parametrize("suspended", [False, True])
def test_a_finished_workload_whose_job_has_not_finished_yet_is_kept(evicted: bool, suspended: bool) -> None:
    manager = dispatched(sft())
    started(manager)
    name = workload(manager)
    manager.job["spec"]["suspend"] = suspended
    if evicted:
        evict(manager, "AdmissionCheck")
    conditions = manager.workloads[name]["status"]["conditions"]
    conditions.append({"type": "Finished", "status": "True", "reason": "Succeeded"})
    before = copied(manager.workloads)
    manager.settle()
    assert manager.workloads == before


def test_a_failed_job_is_retried_with_a_new_workload() -> None:
    manager = dispatched(sft())
    worker = started(manager)
    worker.end(worker.name("driver"), 78, "the data has no prompts")
    worker.settle()
    copy_status(worker, manager)
    manager.settle()
    assert manager.phase == "Failed"
    before = manager.workloads[workload(manager)]["metadata"]["uid"]
    manager.job["metadata"]["annotations"] = {RETRY_ANNOTATION: "1"}
    manager.settle()
    assert manager.workloads[workload(manager)]["metadata"]["uid"] != before
    assert (manager.phase, manager.message) == ("Pending", "waits in queue align of Kueue")
    assert manager.job["status"]["retry"] == "1"
    assert not {"credentials", "document"} & set(manager.job["status"])
    # The new copy does not retry by itself.
    manager.admit(workload(manager))
    worker = worker_of(manager)
    worker.admit(workload(manager))
    worker.start()
    assert worker.phase == "Running"


def test_only_the_manager_deletes_a_finished_job_when_its_time_to_live_is_over() -> None:
    manager = dispatched(sft(lifecycle={"ttlSecondsAfterFinished": 60}))
    worker = started(manager)
    worker.end(worker.name("driver"), 0)
    worker.settle()
    copy_status(worker, manager)
    assert manager.settle().requeue_after == pytest.approx(60.0, abs=1.0)
    for cluster in (manager, worker):
        cluster.pass_time(61.0)
        cluster.settle()
    assert (manager.job_deleted, worker.job_deleted) == (True, False)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"policy": {"model": {"job": {"name": "other"}}}}, "spec.policy.model.job.name"),
        (
            {"checkpoint": {"volume": {"claimName": "runs"}, "from": {"job": {"name": "other"}}}},
            "spec.checkpoint.from.job.name",
        ),
    ],
)
def test_a_job_that_reads_another_job_is_refused(changes: Json, says: str) -> None:
    manager = dispatched(sft(**changes))
    manager.dependencies["other"] = DependencyView(
        "other", "11111111-a", phase="Succeeded", result=VolumePath("runs", "other-11111111/result")
    )
    manager.settle()
    assert (manager.workloads, manager.phase) == ({}, "Pending")
    assert says in manager.message and "name an address, uri" in manager.message
    assert manager.condition("Accepted")["status"] == "False"


def test_a_job_without_a_queue_is_refused_and_gives_up_its_place() -> None:
    manager = dispatched(sft())
    manager.settle()
    assert len(manager.workloads) == 1
    manager.job["metadata"]["labels"] = {}
    manager.settle()
    assert manager.workloads == {}
    assert "spec.managedBy: needs a LocalQueue of Kueue: name it in the label" in manager.message
    assert manager.condition("Stalled")["status"] == "True"


def test_a_platform_without_kueue_refuses_both_kinds_of_jobs() -> None:
    manager = dispatched(sft(), platform=PLATFORM)
    manager.settle()
    assert "spec.managedBy: needs Kueue" in manager.message
    copy = sft()
    copy["metadata"]["labels"] = {PREBUILT_WORKLOAD_LABEL: "sft-6f1f7d0e"}
    worker = Cluster(copy, platform=PLATFORM)
    worker.settle()
    assert "names a Workload of Kueue" in worker.message
    assert worker.pods == {}


def test_the_operator_runs_a_job_that_names_it() -> None:
    job = sft(managedBy="kubealign.dev/operator")
    cluster = Cluster(job)
    cluster.start()
    assert cluster.phase == "Running"


# The worker cluster.


def test_a_worker_takes_over_the_workload_and_runs_in_its_quota() -> None:
    manager = dispatched(sft())
    manager.settle()
    worker = worker_of(manager)
    spec = copied(worker.workloads[workload(worker)]["spec"])
    worker.settle()
    assert owners(worker) == [_WORKER_UID]
    assert (worker.pods, worker.message) == ({}, "waits in queue align of Kueue")
    worker.admit(workload(worker))
    worker.start()
    assert worker.phase == "Running"
    end_driver(worker, 0)
    assert (worker.phase, *condition(worker, "Finished")) == ("Succeeded", "True", "Succeeded")
    assert worker.workloads[workload(worker)]["spec"] == spec


def test_a_failure_finishes_the_workload_as_failed() -> None:
    worker = started(dispatched(sft()))
    end_driver(worker, 78, "the data has no prompts")
    assert (worker.phase, *condition(worker, "Finished")) == ("Failed", "True", "Failed")


def test_a_worker_waits_for_its_workload_and_never_makes_one() -> None:
    manager = dispatched(sft())
    manager.settle()
    worker = worker_of(manager)
    name, prebuilt = worker.workloads.popitem()
    worker.settle()
    assert worker.message == f"waits for Workload {name}, which MultiKueue creates"
    assert (worker.pods, worker.workloads) == ({}, {})
    worker.workloads[name] = prebuilt
    worker.admit(name)
    worker.start()
    assert worker.phase == "Running"


def test_a_workload_of_another_owner_is_left_alone() -> None:
    manager = dispatched(sft())
    manager.settle()
    worker = worker_of(manager)
    name = workload(worker)
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "other", "uid": "1", "controller": True}
    worker.workloads[name]["metadata"]["ownerReferences"] = [owner]
    worker.admit(name)
    worker.settle()
    assert (owners(worker), worker.pods) == (["1"], {})
    assert worker.message == f"waits for the deletion of Workload {name}, which belongs to another job"


def test_an_evicted_worker_returns_the_admission_and_keeps_the_workload() -> None:
    worker = started(dispatched(sft()))
    name = workload(worker)
    before = copied(worker.workloads[name]["spec"])
    worker.evict(name)
    worker.settle()
    assert worker.phase == "Suspending"
    stop_pods(worker)
    assert worker.phase == "Pending"
    assert "admission" not in worker.workloads[name]["status"]
    assert worker.workloads[name]["spec"] == before


@pytest.mark.parametrize(
    ("platform", "says"),
    [
        (
            replace(KUEUE, default_resources={"trainer": {"requests": {"cpu": "3"}}}),
            "their resources, scheduling fields, queue or priority class differ",
        ),
        (
            replace(KUEUE, pod_template={"spec": {"nodeSelector": {"pool": "b"}}}),
            "their resources, scheduling fields, queue or priority class differ",
        ),
    ],
)
def test_a_worker_with_other_settings_refuses_to_start(platform: Platform, says: str) -> None:
    manager = dispatched(sft())
    manager.settle()
    worker = worker_of(manager, platform)
    worker.admit(workload(worker))
    worker.settle()
    assert (worker.phase, worker.pods) == ("Pending", {})
    assert says in worker.message and "Both clusters need" in worker.message
    assert (worker.condition("Ready")["status"], worker.condition("Ready")["reason"]) == ("False", "Refused")


def test_a_workload_for_another_number_of_ranks_is_refused_with_both_numbers() -> None:
    manager = dispatched(sft())
    manager.settle()
    worker = worker_of(manager)
    for pod_set in worker.workloads[workload(worker)]["spec"]["podSets"]:
        pod_set["count"] += pod_set["name"] == "trainer"
    worker.workloads[workload(worker)]["metadata"]["annotations"] = {"kubealign.dev/pod-sets": "other"}
    worker.admit(workload(worker))
    worker.settle()
    assert (
        "asks for 1 of control, 2 of trainer, and the job needs 1 of control, 1 of trainer" in worker.message
    )


def test_a_worker_needs_neither_the_priority_class_nor_the_image_of_the_manager() -> None:
    job = sft()
    manager = dispatched(job, **{"kueue.x-k8s.io/priority-class": "urgent"})
    manager.workload_priorities["urgent"] = 1000
    manager.settle()
    worker = worker_of(manager, replace(KUEUE, image="mirror.example/services:1"))
    worker.admit(workload(worker))
    worker.start()
    assert worker.phase == "Running"


def test_rollout_workers_beyond_the_admitted_ones_are_not_started() -> None:
    job = ppo(policy={"model": {"volume": {"claimName": "models", "path": "base"}}})
    manager = dispatched(job)
    manager.settle()
    name = workload(manager)
    manager.admit(name)
    # Scaled up before the copy was made, and again later.
    manager.job["spec"]["rollout"]["replicas"] = 4
    worker = worker_of(manager)
    worker.pod_priorities["research"] = 7
    worker.admit(name, rollout=2)
    worker.start()
    assert worker.phase == "Running"
    assert {"rollout-0", "rollout-1"} <= set(worker.short_names())
    assert not {"rollout-2", "rollout-3"} & set(worker.short_names())
    assert worker.message.startswith("2 more rollout workers wait for an admission of the job with more")
    assert list(worker.workloads) == [name]


def test_a_worker_whose_copy_is_suspended_keeps_the_workload() -> None:
    worker = started(dispatched(sft()))
    worker.job["spec"]["suspend"] = True
    worker.settle()
    stop_pods(worker)
    assert worker.phase == "Suspended"
    assert "suspend the job in the cluster from which it came" in worker.message
    assert len(worker.workloads) == 1


@pytest.mark.parametrize(
    ("uri", "folder"),
    [(None, "sft-6f1f7d0e"), ("s3://bucket/jobs/sft", "sft-0a1b2c3d")],
)
def test_a_job_without_copies_finds_its_run_directory_when_it_comes_back(
    uri: str | None, folder: str
) -> None:
    checkpoint: Json = {"volume": {"claimName": "runs", "path": "team"}}
    if uri is not None:
        checkpoint["uri"] = uri
    worker = started(dispatched(sft(checkpoint=checkpoint)))
    assert worker.settings("driver")["run_dir"].endswith(f"/runs/team/{folder}")
    worker.end(worker.name("driver"), 0)
    worker.settle()
    assert worker.job["status"]["result"] == {"claimName": "runs", "path": f"team/{folder}/result"}


def test_a_forged_label_names_no_run_directory_of_another_job() -> None:
    manager = dispatched(sft())
    manager.settle()
    worker = worker_of(manager)
    prebuilt = worker.workloads.pop(workload(worker))
    worker.job["metadata"]["labels"][PREBUILT_WORKLOAD_LABEL] = "other-6f1f7d0e"
    prebuilt["metadata"]["name"] = "other-6f1f7d0e"
    worker.workloads["other-6f1f7d0e"] = prebuilt
    worker.admit("other-6f1f7d0e")
    worker.start()
    assert worker.settings("driver")["run_dir"].endswith("/runs/team/sft-0a1b2c3d")
