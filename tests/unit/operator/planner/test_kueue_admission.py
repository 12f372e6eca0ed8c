"""Admission of jobs by Kueue, against a simulated Kueue."""

from dataclasses import replace
from typing import Any

import pytest

from kubealign_operator.kube_views.kueue_view import PodPlacement
from kubealign_operator.kube_views.observed_job import DependencyView, VolumePath
from kubealign_operator.manifests.context import Platform
from kubealign_operator.planner.admission.workload_changes import MAX_WAITING_WORKERS
from support.rendering.cluster import Cluster
from support.rendering.jobs import PLATFORM, QUEUE, ppo, sft, shared_workers

Json = dict[str, Any]
KUEUE = replace(PLATFORM, uses_kueue=True)
_SFT = DependencyView(
    "sft", "11111111-a", phase="Succeeded", result=VolumePath("runs", "sft-11111111/result")
)


def queued(job: Json, platform: Platform = KUEUE, **labels: str) -> Cluster:
    """Return a cluster with a job that has the label of its queue."""
    job["metadata"]["labels"] = {**job["metadata"].get("labels", {}), **QUEUE, **labels}
    cluster = Cluster(job, platform=platform, dependencies={"sft": _SFT})
    cluster.pod_priorities["research"] = 7
    return cluster


def main(cluster: Cluster) -> str:
    """Return the name of the Workload of the job as a whole."""
    (name,) = [name for name, value in cluster.workloads.items() if "kubealign.dev/unit" not in labels(value)]
    return name


def labels(document: Json) -> Json:
    value: Json = document["metadata"]["labels"]
    return value


def condition(workload: Json, kind: str) -> tuple[str, str]:
    value = next(item for item in workload["status"]["conditions"] if item["type"] == kind)
    return value["status"], value["reason"]


def running(job: Json, **counts: int) -> Cluster:
    """Return the cluster of an admitted job that runs."""
    cluster = queued(job)
    cluster.settle()
    cluster.admit(main(cluster), **counts)
    cluster.start()
    assert cluster.phase == "Running"
    return cluster


def stop_pods(cluster: Cluster) -> None:
    """Let the nodes end all pods that are being deleted: the driver first, then the others."""
    for _ in range(3):
        cluster.settle()
        cluster.finish_leaving()
    cluster.settle()


def test_a_queued_job_asks_for_all_pods_and_has_none() -> None:
    cluster = queued(ppo())
    cluster.settle()
    assert (cluster.phase, cluster.pods) == ("Pending", {})
    assert cluster.message == "waits in queue align of Kueue"
    assert cluster.condition("Admitted")["status"] == "False"
    workload = cluster.workloads[main(cluster)]
    assert workload["spec"]["queueName"] == "align"
    sets = {item["name"]: (item["count"], item.get("minCount")) for item in workload["spec"]["podSets"]}
    assert sets == {
        "control": (1, None),
        "trainer": (2, None),
        "critic": (1, None),
        "reference": (1, None),
        "reward-helpful": (1, None),
        "reward-format": (1, None),
        "rollout": (3, 2),
    }
    # The priority class of the job's pods.
    assert (workload["spec"]["priority"], workload["spec"]["priorityClassRef"]["name"]) == (7, "research")
    (owner,) = workload["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["controller"]) == ("AlignmentJob", True)


def test_the_control_set_counts_driver_and_bus_and_preparation_only_where_it_needs_more() -> None:
    cluster = queued(sft())
    cluster.settle()
    control = cluster.workloads[main(cluster)]["spec"]["podSets"][0]["template"]["spec"]
    requests = {item["name"]: item["resources"]["requests"] for item in control["containers"]}
    assert requests == {
        "driver": {"cpu": "250m", "memory": "1Gi"},
        "nats": {"cpu": "100m", "memory": "256Mi"},
    }
    assert [item["name"] for item in control["initContainers"]] == ["prepare"]


def test_an_admitted_job_runs_with_the_fields_of_its_flavors() -> None:
    cluster = queued(sft())
    cluster.settle()
    toleration = {"key": "spot", "operator": "Exists"}
    cluster.flavors["spot"] = PodPlacement(node_selector={"pool": "spot"}, tolerations=(toleration,))
    cluster.admit(main(cluster), "spot")
    cluster.start()
    assert cluster.phase == "Running"
    assert cluster.condition("Admitted")["status"] == "True"
    assert condition(cluster.workloads[main(cluster)], "PodsReady") == ("True", "Started")
    for name, pod in cluster.pods.items():
        assert pod["spec"]["nodeSelector"]["pool"] == "spot", name
        assert toleration in pod["spec"]["tolerations"]
        assert labels(pod)["kueue.x-k8s.io/podset"] == ("trainer" if "trainer" in name else "control")
        assert pod["metadata"]["annotations"]["kueue.x-k8s.io/workload"] == main(cluster)


def _on_topology(value: str, **annotations: str) -> Json:
    """Return a job whose trainer's pods have an annotation for a topology, and the job's pods others."""
    requested = {"metadata": {"annotations": {"kueue.x-k8s.io/podset-required-topology": value}}}
    common = {"metadata": {"annotations": annotations}}
    return sft(trainer={"ranks": 2, "podTemplate": requested}, podTemplate=common)


def test_pods_on_a_topology_wait_for_their_domain() -> None:
    cluster = queued(_on_topology("rack"))
    cluster.settle()
    sets = {item["name"]: item for item in cluster.workloads[main(cluster)]["spec"]["podSets"]}
    assert sets["trainer"]["topologyRequest"] == {"required": "rack"}
    assert "topologyRequest" not in sets["control"]
    values = [{"universal": "a"}, {"individual": {"prefix": "node-", "roots": ["3"], "suffix": ".x"}}]
    part = {"domainCount": 1, "valuesPerLevel": values, "podCounts": {"universal": 2}}
    cluster.admit(main(cluster), topology={"levels": ["rack", "host"], "slices": [part]})
    cluster.start()
    gates = {name: pod["spec"].get("schedulingGates") for name, pod in cluster.pods.items()}
    assert gates == {
        name: [{"name": "kueue.x-k8s.io/topology"}] if "trainer" in name else None for name in gates
    }
    for name, pod in cluster.pods.items():
        annotations = pod["metadata"]["annotations"]
        if "trainer" in name:
            assert annotations["kueue.x-k8s.io/podset-required-topology"] == "rack"
            assert "kueue.x-k8s.io/podset-unconstrained-topology" not in annotations
        else:
            assert annotations["kueue.x-k8s.io/podset-unconstrained-topology"] == "true"
            assert pod["spec"]["nodeSelector"].items() >= {"rack": "a", "host": "node-3.x"}.items()


@pytest.mark.parametrize(
    ("job", "problem"),
    [
        (_on_topology(""), "podset-required-topology is empty"),
        (
            _on_topology("rack", **{"kueue.x-k8s.io/podset-preferred-topology": "rack"}),
            "only one of the annotations",
        ),
        (
            sft(
                podTemplate={
                    "metadata": {"annotations": {"kueue.x-k8s.io/podset-unconstrained-topology": "yes"}}
                }
            ),
            "is 'yes'; the only value is \"true\"",
        ),
    ],
)
def test_a_wrong_request_for_a_topology_is_named(job: Json, problem: str) -> None:
    cluster = queued(job)
    cluster.settle()
    assert cluster.phase == "Pending"
    assert problem in cluster.message
    assert cluster.workloads == {}


def test_a_flavor_that_does_not_exist_is_named() -> None:
    cluster = queued(sft())
    cluster.settle()
    cluster.admit(main(cluster), "gone")
    del cluster.flavors["gone"]
    cluster.settle()
    assert cluster.pods == {}
    assert "ResourceFlavor gone, which Kueue has assigned, does not exist" in cluster.message


def test_an_evicted_job_saves_first_and_returns_its_reservation_when_its_pods_are_gone() -> None:
    cluster = running(sft())
    cluster.evict(main(cluster), message="Preempted to accommodate a workload")
    plan = cluster.step()
    assert cluster.phase == "Suspending"
    assert [pod.name for pod in plan.delete] == ["sft-driver-0"]
    assert cluster.message == (
        "evicted from queue align of Kueue: Preempted to accommodate a workload: the driver saves a "
        "checkpoint"
    )
    assert "admission" in cluster.workloads[main(cluster)]["status"]
    stop_pods(cluster)
    assert (cluster.phase, cluster.pods) == ("Pending", {})
    workload = cluster.workloads[main(cluster)]
    assert "admission" not in workload["status"]
    assert condition(workload, "QuotaReserved") == ("False", "Pending")
    assert condition(workload, "Admitted") == ("False", "NoReservation")
    assert condition(workload, "Requeued") == ("True", "Preempted")
    assert cluster.condition("Suspended")["status"] == "True"
    assert "activeSince" not in cluster.job["status"]
    assert cluster.job["status"].get("restarts", 0) == 0


def test_an_evicted_job_resumes_when_it_is_admitted_again() -> None:
    cluster = running(sft())
    cluster.evict(main(cluster))
    stop_pods(cluster)
    cluster.pass_time(3600)
    cluster.settle()
    assert cluster.phase == "Pending"
    cluster.admit(main(cluster))
    cluster.start()
    assert cluster.phase == "Running"
    assert cluster.condition("Suspended") | {"lastTransitionTime": ""} == {
        "type": "Suspended", "status": "False", "reason": "Resumed", "message": "", "lastTransitionTime": "",
        "observedGeneration": 1,
    }  # fmt: skip
    # Preparation is not repeated, and the hour in the queue was not active time.
    assert cluster.made.count("sft-prepare-0") == 1
    assert cluster.job["status"].get("activeSeconds", 0) < 60


@pytest.mark.parametrize(
    ("reason", "requeued"),
    [
        ("Preempted", "True"),
        ("NodeFailures", "True"),
        ("PodsReadyTimeout", "False"),
        ("Deactivated", "False"),
    ],
)
def test_kueue_decides_when_an_evicted_job_is_queued_again(reason: str, requeued: str) -> None:
    cluster = running(sft())
    cluster.evict(main(cluster), reason)
    stop_pods(cluster)
    assert condition(cluster.workloads[main(cluster)], "Requeued") == (requeued, reason)


def test_a_workload_that_is_inactive_keeps_the_job_waiting() -> None:
    cluster = running(sft())
    cluster.workloads[main(cluster)]["spec"]["active"] = False
    cluster.evict(main(cluster), "Deactivated", "The workload is deactivated")
    stop_pods(cluster)
    assert cluster.message == f"waits until spec.active of Workload {main(cluster)} is true"


def test_a_job_that_kueue_has_deactivated_asks_anew_once_its_workload_is_active() -> None:
    cluster = running(sft())
    before = cluster.workloads[main(cluster)]
    before["spec"]["active"] = False
    cluster.evict(main(cluster), "DeactivatedDueToMaximumExecutionTimeExceeded")
    stop_pods(cluster)
    assert cluster.workloads[main(cluster)]["metadata"]["uid"] == before["metadata"]["uid"]
    cluster.workloads[main(cluster)]["spec"]["active"] = True
    cluster.settle()
    assert cluster.workloads[main(cluster)]["metadata"]["uid"] != before["metadata"]["uid"]


@pytest.mark.parametrize("exit_code", [0, 78])
def test_the_quota_is_released_when_the_last_process_of_a_finished_job_has_ended(exit_code: int) -> None:
    cluster = running(sft())
    cluster.end(cluster.name("driver"), exit_code, "the end")
    cluster.settle()
    workload = cluster.workloads[main(cluster)]
    assert not any(item["type"] == "Finished" for item in workload["status"]["conditions"])
    cluster.finish_leaving()
    cluster.settle()
    expected = "Succeeded" if exit_code == 0 else "Failed"
    assert cluster.phase == expected
    assert condition(cluster.workloads[main(cluster)], "Finished") == ("True", expected)


def test_a_retry_asks_with_a_new_workload() -> None:
    cluster = running(sft())
    cluster.end(cluster.name("driver"), 78, "wrong data")
    cluster.settle()
    cluster.finish_leaving()
    cluster.settle()
    before = cluster.workloads[main(cluster)]["metadata"]["uid"]
    cluster.job["metadata"]["annotations"] = {"kubealign.dev/retry": "1"}
    cluster.settle()
    assert cluster.phase == "Pending"
    assert cluster.workloads[main(cluster)]["metadata"]["uid"] != before
    cluster.admit(main(cluster))
    cluster.start()
    assert cluster.phase == "Running"


def test_a_suspended_job_has_no_workload() -> None:
    cluster = running(sft())
    cluster.job["spec"]["suspend"] = True
    cluster.step()
    assert cluster.message == "suspending: the driver saves a checkpoint"
    assert cluster.workloads
    stop_pods(cluster)
    assert (cluster.phase, cluster.workloads) == ("Suspended", {})
    assert cluster.condition("Admitted")["reason"] == "Suspended"
    cluster.job["spec"]["suspend"] = False
    cluster.settle()
    assert (cluster.phase, len(cluster.workloads)) == ("Pending", 1)
    cluster.admit(main(cluster))
    cluster.start()
    assert cluster.phase == "Running"


def test_a_partly_admitted_job_runs_and_its_other_workers_ask_alone() -> None:
    cluster = running(ppo(), rollout=2)
    assert cluster.counted("rollout") == (3, 2)
    assert cluster.message == "1 more rollout worker waits in queue align of Kueue"
    (worker,) = [name for name, value in cluster.workloads.items() if "kubealign.dev/unit" in labels(value)]
    assert labels(cluster.workloads[worker])["kubealign.dev/unit"] == "rollout-2"
    (pod_set,) = cluster.workloads[worker]["spec"]["podSets"]
    assert (pod_set["name"], pod_set["count"]) == ("rollout", 1)
    cluster.admit(worker)
    cluster.settle()
    cluster.serve()
    cluster.settle()
    assert cluster.counted("rollout") == (3, 3)
    assert cluster.pods["ppo-rollout-2-0"]["metadata"]["annotations"]["kueue.x-k8s.io/workload"] == worker
    # Kueue takes the worker's quota: only this worker ends.
    cluster.evict(worker)
    plan = cluster.step()
    assert [pod.name for pod in plan.delete] == ["ppo-rollout-2-0"]
    cluster.finish_leaving()
    cluster.settle()
    assert cluster.phase == "Running"
    assert "admission" not in cluster.workloads[worker]["status"]
    assert cluster.job["status"].get("restarts", 0) == 0


def test_scaling_up_asks_for_each_new_worker_and_scaling_down_gives_quota_back() -> None:
    cluster = running(ppo())
    cluster.job["spec"]["rollout"]["replicas"] = 4
    cluster.settle()
    worker = next(name for name in cluster.workloads if "rollout-3" in name)
    cluster.admit(worker)
    cluster.settle()
    cluster.serve()
    cluster.settle()
    assert cluster.counted("rollout") == (4, 4)
    cluster.job["spec"]["rollout"]["replicas"] = 2
    cluster.settle()
    assert worker in cluster.workloads
    assert "reclaimablePods" not in cluster.workloads[main(cluster)]["status"]
    cluster.finish_leaving()
    cluster.settle()
    assert worker not in cluster.workloads
    assert cluster.workloads[main(cluster)]["status"]["reclaimablePods"] == [{"name": "rollout", "count": 1}]
    # What was given back is asked for again.
    cluster.job["spec"]["rollout"]["replicas"] = 3
    cluster.settle()
    assert any("rollout-2" in name for name in cluster.workloads)
    assert cluster.counted("rollout") == (3, 2)


def test_quota_of_a_partly_admitted_job_is_given_back_from_what_was_asked_for() -> None:
    job = ppo()
    job["spec"]["rollout"] = {"replicas": 5, "minReplicas": 1}
    cluster = running(job, rollout=3)
    cluster.job["spec"]["rollout"]["replicas"] = 2
    cluster.settle()
    cluster.finish_leaving()
    cluster.settle()
    # Kueue counts 5 - 3 pods now.
    assert cluster.workloads[main(cluster)]["status"]["reclaimablePods"] == [{"name": "rollout", "count": 3}]
    assert list(cluster.workloads) == [main(cluster)]


def test_a_job_that_gave_quota_back_asks_for_all_again_after_an_eviction() -> None:
    cluster = running(ppo())
    cluster.job["spec"]["rollout"]["replicas"] = 2
    cluster.settle()
    cluster.finish_leaving()
    cluster.settle()
    before = main(cluster)
    uid = cluster.workloads[before]["metadata"]["uid"]
    cluster.evict(before)
    stop_pods(cluster)
    assert cluster.workloads[main(cluster)]["metadata"]["uid"] != uid
    counts = {item["name"]: item["count"] for item in cluster.workloads[main(cluster)]["spec"]["podSets"]}
    assert counts["rollout"] == 2


def test_workers_of_several_pods_are_admitted_whole() -> None:
    cluster = running(shared_workers(), rollout=3)
    # Three of four pods: one worker of two pods.
    assert cluster.counted("rollout") == (2, 1)
    (worker,) = [name for name, value in cluster.workloads.items() if "kubealign.dev/unit" in labels(value)]
    assert cluster.workloads[worker]["spec"]["podSets"][0]["count"] == 2


def test_few_workers_ask_at_the_same_time() -> None:
    job = ppo()
    job["spec"]["rollout"] = {"replicas": 40, "minReplicas": 2}
    cluster = running(job, rollout=2)
    assert len(cluster.workloads) == 1 + MAX_WAITING_WORKERS


def test_the_priority_class_of_the_job_must_exist() -> None:
    cluster = queued(sft(), **{"kueue.x-k8s.io/priority-class": "urgent"})
    cluster.settle()
    assert cluster.message == (
        "waits for WorkloadPriorityClass urgent: the job's label names it, and it does not exist"
    )
    assert cluster.workloads == {}
    cluster.workload_priorities["urgent"] = 1000
    cluster.settle()
    spec = cluster.workloads[main(cluster)]["spec"]
    assert spec["priority"] == 1000
    assert spec["priorityClassRef"] == {
        "group": "kueue.x-k8s.io", "kind": "WorkloadPriorityClass", "name": "urgent"
    }  # fmt: skip


def test_neither_a_new_image_nor_a_new_value_of_the_priority_costs_a_job_its_turn() -> None:
    cluster = queued(ppo())
    cluster.settle()
    before = cluster.workloads[main(cluster)]["metadata"]["uid"]
    cluster.platform = replace(KUEUE, image="kubealign/services:2")
    cluster.pod_priorities["research"] = 8
    cluster.settle()
    assert cluster.workloads[main(cluster)]["metadata"]["uid"] == before


def test_a_job_runs_on_without_its_priority_class() -> None:
    cluster = running(ppo())
    del cluster.pod_priorities["research"]
    cluster.end(cluster.name("critic-0"), 1)
    cluster.settle()
    cluster.pass_time(60)
    cluster.settle()
    cluster.finish_leaving()
    cluster.start()
    assert cluster.phase == "Running"
    assert cluster.name("critic-0") == "ppo-critic-0-1"


def test_a_queue_that_is_changed_while_the_job_waits_gets_a_new_workload() -> None:
    cluster = queued(sft())
    cluster.settle()
    cluster.job["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "other"}
    cluster.settle()
    assert cluster.workloads[main(cluster)]["spec"]["queueName"] == "other"


def test_a_queue_that_is_changed_while_the_job_runs_waits_for_the_next_admission() -> None:
    cluster = running(sft())
    cluster.job["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "other"}
    cluster.settle()
    assert cluster.phase == "Running"
    assert cluster.workloads[main(cluster)]["spec"]["queueName"] == "align"
    cluster.evict(main(cluster))
    stop_pods(cluster)
    assert cluster.workloads[main(cluster)]["spec"]["queueName"] == "other"


def test_a_queue_without_kueue_is_an_error() -> None:
    cluster = queued(sft(), PLATFORM)
    cluster.settle()
    assert (cluster.phase, cluster.pods) == ("Pending", {})
    assert cluster.message == (
        "metadata.labels[kueue.x-k8s.io/queue-name]: names a queue of Kueue, which this platform does not "
        'use: remove the label, or set kueue.enabled in the Helm chart (it holds "align")'
    )


def test_a_queue_on_the_pods_of_a_role_is_an_error() -> None:
    cluster = queued(sft(trainer={"podTemplate": {"metadata": {"labels": QUEUE}}}))
    cluster.settle()
    assert cluster.message.startswith(
        "spec.trainer.podTemplate.metadata.labels.kueue.x-k8s.io/queue-name: would queue single pods"
    )


def test_a_deleted_workload_of_a_running_job_is_asked_for_again() -> None:
    cluster = running(sft())
    del cluster.workloads[main(cluster)]
    cluster.step()
    assert cluster.phase == "Suspending"
    stop_pods(cluster)
    assert (cluster.phase, len(cluster.workloads)) == ("Pending", 1)


def test_workloads_of_others_are_left_alone() -> None:
    cluster = queued(sft())
    cluster.settle()
    own = cluster.workloads[main(cluster)]
    metadata = {**own["metadata"], "name": "foreign", "uid": "foreign", "ownerReferences": []}
    foreign = {**own, "metadata": metadata}
    cluster.workloads["foreign"] = foreign
    cluster.job["spec"]["suspend"] = True
    cluster.settle()
    assert list(cluster.workloads) == ["foreign"]


def test_more_pod_sets_than_kueue_allows_are_refused_unless_they_are_alike() -> None:
    def rewards(*cpus: str) -> list[Json]:
        return [
            {
                "name": f"r{index}",
                "model": {"volume": {"claimName": "models", "path": "rm"}},
                "podTemplate": {
                    "spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": cpu}}}]}
                },
            }
            for index, cpu in enumerate(cpus)
        ]

    alike = queued(ppo(rewards=rewards("1", "1", "1", "1")))
    alike.settle()
    sets = {item["name"]: item["count"] for item in alike.workloads[main(alike)]["spec"]["podSets"]}
    assert len(sets) <= 8
    assert sets["r0" if "r0" in sets else "reward-r0"] == 4
    different = queued(ppo(rewards=rewards("1", "2", "3", "4", "5", "6")))
    different.settle()
    assert different.workloads == {}
    assert (
        "Kueue admits jobs with at most 8 different kinds of pods, and this one has 10" in different.message
    )
