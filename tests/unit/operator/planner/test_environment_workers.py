"""Environment workers in a cluster: their pods, their number, and a queue that admitted fewer."""

import json
from dataclasses import replace
from typing import Any

from kubealign.roles import roles
from kubealign_operator.manifests.context import RenderContext
from kubealign_operator.manifests.egress import group_egress
from kubealign_operator.manifests.pod import build_pod
from kubealign_operator.planner.validation import parse_job
from support.rendering.cluster import Cluster
from support.rendering.jobs import PLATFORM, QUEUE, UID, environment_workers

GPUS = {"spec": {"containers": [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": 1}}}]}}


def workers(cluster: Cluster) -> list[str]:
    return [name for name in cluster.short_names() if name.startswith("environment")]


def set_replicas(cluster: Cluster, replicas: int) -> None:
    cluster.job["spec"]["rollout"]["environmentReplicas"] = replicas


def test_a_pod_has_the_code_and_the_network_of_the_environment_and_no_gpu() -> None:
    job = parse_job(environment_workers(podTemplate=GPUS))
    context = RenderContext(job.name, "team", UID, job, PLATFORM)
    pods: dict[str, Any] = {each.name: build_pod(context, each, 0) for each in roles(job)}
    pod = pods["environment-1"]
    main = pod["spec"]["containers"][0]
    assert "kubealign_services.roles.environment.main" in main["command"]
    assert "nvidia.com/gpu" in json.dumps(pods["rollout-0"])
    assert "nvidia.com/gpu" not in json.dumps(pod)
    assert {"name": "games"} in [volume.get("configMap") for volume in pod["spec"]["volumes"]]
    rules = group_egress(context)
    assert rules["environment"] == rules["rollout"] != []


def test_the_job_starts_with_one_environment_worker_and_is_scaled_while_it_runs() -> None:
    cluster = Cluster(environment_workers(3))
    cluster.settle()
    cluster.serve()
    cluster.end(cluster.name("prepare"), 0)
    cluster.settle()
    late = {cluster.name("environment-0"), cluster.name("environment-2")}
    others = [name for name, pod in cluster.pods.items() if pod["status"]["phase"] == "Pending"]
    for name in {*others} - {*late, cluster.name("environment-1")}:
        cluster.run(name)
    cluster.settle()
    assert (cluster.phase, cluster.counted("environment")) == ("Starting", (3, 0))
    cluster.run(cluster.name("environment-1"))
    cluster.settle()
    cluster.serve()
    cluster.settle()
    assert (cluster.phase, cluster.counted("environment")) == ("Running", (3, 3))
    set_replicas(cluster, 1)
    deleted = cluster.step().delete
    assert [deletion.name for deletion in deleted] == ["played-environment-2-0", "played-environment-1-0"]
    cluster.finish_leaving()
    cluster.settle()
    set_replicas(cluster, 2)
    cluster.settle()
    cluster.serve()
    cluster.settle()
    assert workers(cluster) == ["environment-0", "environment-1"]
    assert cluster.job["status"]["restarts"] == 0


def test_workers_beyond_the_quota_of_a_queue_wait_for_the_next_admission() -> None:
    job = environment_workers(2)
    job["metadata"]["labels"] = QUEUE
    cluster = Cluster(job, platform=replace(PLATFORM, uses_kueue=True))
    cluster.settle()
    (workload,) = cluster.workloads
    counts = {each["name"]: each["count"] for each in cluster.workloads[workload]["spec"]["podSets"]}
    assert counts["environment"] == 2
    cluster.admit(workload)
    cluster.start()
    set_replicas(cluster, 3)
    cluster.settle()
    assert workers(cluster) == ["environment-0", "environment-1"]
    assert cluster.message.startswith("environment-2: queue align of Kueue has admitted the job with fewer")
    assert cluster.phase == "Running"
