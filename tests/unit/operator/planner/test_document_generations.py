"""Generations of a job's document: a resume after a change makes the next one, and nothing else does."""

import json
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from kubealign.labels import DOCUMENT_LABEL
from kubealign.spec.job import AlignmentJob
from kubealign.spec.mutable_fields import MUTABLE_BETWEEN_RUNS, MUTABLE_DOCUMENT_FIELDS
from kubealign_operator.planner import document
from kubealign_operator.planner.document import document_digest
from support.document_changes import CHANGES
from support.rendering.cluster import Cluster
from support.rendering.crashing_cluster import CrashingCluster, OperatorCrash
from support.rendering.jobs import PLATFORM, QUEUE, Json, sft, shared_workers


def _job() -> Json:
    """Return a job with five rollout workers and a validation, that counts no restart."""
    return shared_workers(
        rollout={"replicas": 5, "minReplicas": 2},
        lifecycle={"maxRestarts": 0},
        validation={"everySteps": 1, "data": {"prompts": {"source": _volume()}}},
    )


def _volume() -> Json:
    return {"volume": {"claimName": "data", "path": "held.jsonl"}}


def _running(cluster: Cluster | None = None) -> Cluster:
    cluster = cluster or Cluster(_job())
    cluster.start()
    assert cluster.phase == "Running", cluster.message
    return cluster


def _set(cluster: Cluster, path: str, value: Any) -> None:
    """Change a field of the spec as the API server does: metadata.generation is counted."""
    section = cluster.job
    *parents, name = path.split(".")
    for parent in parents:
        section = section.setdefault(parent, {})
    section[name] = value
    cluster.job["metadata"]["generation"] += 1


def _suspend(cluster: Cluster) -> None:
    _set(cluster, "spec.suspend", True)
    _end_pods(cluster)
    cluster.settle()
    assert cluster.phase == "Suspended"


def _end_pods(cluster: Cluster) -> None:
    """Let the nodes end the pods that are being deleted: the driver first, then the others."""
    for _ in range(3):
        cluster.settle()
        cluster.finish_leaving()


def _resume(cluster: Cluster) -> None:
    _set(cluster, "spec.suspend", False)
    cluster.start()
    assert cluster.phase == "Running", cluster.message


def _generation(cluster: Cluster) -> int:
    return int(cluster.job["status"]["document"]["generation"])


def _config_maps(cluster: Cluster) -> list[str]:
    return sorted(name for kind, name in cluster.objects if kind == "ConfigMap")


def _mounted(cluster: Cluster) -> set[str]:
    """Return the ConfigMaps that the pods mount, and check that the pods name their generation."""
    mounted = set()
    for pod in cluster.pods.values():
        volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
        if "kubealign-job" not in volumes:
            continue
        name = volumes["kubealign-job"]["configMap"]["name"]
        generation = pod["metadata"]["labels"].get(DOCUMENT_LABEL, "")
        assert name == "shared-document" + (generation and f"-{generation}")
        mounted.add(name)
    return mounted


def _document(cluster: Cluster, name: str) -> Json:
    manifest = cluster.manifests["ConfigMap", name]
    assert manifest["immutable"] is True
    document: Json = json.loads(manifest["data"]["job.json"])
    return document


def _value_at(document: Json, path: str) -> Any:
    value: Any = document
    for name in path.split("."):
        value = value[name]
    return value


def _replacements(cluster: Cluster) -> list[str]:
    return [event.message for event in cluster.events if event.reason == "DocumentReplaced"]


def test_the_table_has_every_field_that_the_processes_read() -> None:
    assert set(CHANGES) == set(MUTABLE_DOCUMENT_FIELDS)


def test_each_of_these_fields_may_change_on_one_machine_too() -> None:
    for path in MUTABLE_DOCUMENT_FIELDS:
        assert any(path == field or path.startswith(f"{field}.") for field in MUTABLE_BETWEEN_RUNS), path


def test_a_new_job_has_the_first_generation() -> None:
    cluster = _running()
    digest = document_digest(AlignmentJob.model_validate(_job_document(cluster)).spec)
    assert cluster.job["status"]["document"] == {"generation": 1, "digest": digest}
    assert (_mounted(cluster), _config_maps(cluster)) == ({"shared-document"}, ["shared-document"])
    assert _replacements(cluster) == []
    assert all(DOCUMENT_LABEL not in pod["metadata"]["labels"] for pod in cluster.pods.values())


def _job_document(cluster: Cluster) -> Json:
    metadata = {"name": cluster.job["metadata"]["name"]}
    return {name: cluster.job[name] for name in ("apiVersion", "kind", "spec")} | {"metadata": metadata}


@pytest.mark.parametrize("path", MUTABLE_DOCUMENT_FIELDS)
def test_a_resume_after_a_change_gives_every_process_the_new_value(path: str) -> None:
    cluster = _running()
    _suspend(cluster)
    _set(cluster, path, CHANGES[path])
    cluster.settle()
    # Nothing reads the document of a suspended job.
    assert (_generation(cluster), _config_maps(cluster)) == (1, ["shared-document"])
    _resume(cluster)
    assert (_generation(cluster), _mounted(cluster)) == (2, {"shared-document-2"})
    new = _value_at(_document(cluster, "shared-document-2"), path)
    assert new == CHANGES[path] or new.items() >= CHANGES[path].items()
    assert _value_at(_document(cluster, "shared-document"), path) != new
    assert _config_maps(cluster) == ["shared-document", "shared-document-2"]
    (message,) = _replacements(cluster)
    assert message == (
        "the processes read the job from the ConfigMap shared-document-2: fields have changed while the job "
        "was suspended"
    )
    assert cluster.job["status"]["restarts"] == 0
    # The next suspension, without a change, makes no other document.
    _suspend(cluster)
    _resume(cluster)
    assert (_generation(cluster), len(_replacements(cluster))) == (2, 1)


def test_a_change_of_what_the_operator_reads_makes_no_document() -> None:
    cluster = _running()
    _set(cluster, "spec.rollout.replicas", 6)
    _set(cluster, "spec.lifecycle.maxRestarts", 4)
    cluster.settle()
    _suspend(cluster)
    _set(cluster, "spec.podTemplate", {"spec": {"nodeSelector": {"pool": "b"}}})
    _resume(cluster)
    assert (_generation(cluster), _mounted(cluster)) == (1, {"shared-document"})


def test_the_next_document_has_the_number_of_workers_of_its_time() -> None:
    """Check that a greater minReplicas does not contradict the replicas that the first document has."""
    cluster = _running()
    _set(cluster, "spec.rollout.replicas", 7)
    cluster.settle()
    _suspend(cluster)
    _set(cluster, "spec.rollout.minReplicas", 6)
    _resume(cluster)
    rollout = _document(cluster, "shared-document-2")["spec"]["rollout"]
    assert (rollout["replicas"], rollout["minReplicas"]) == (7, 6)


def test_a_restarted_pod_mounts_the_document_of_the_others() -> None:
    cluster = _running()
    _set(cluster, "spec.lifecycle.maxRestarts", 3)
    _suspend(cluster)
    _set(cluster, "spec.checkpoint.everySteps", 7)
    _resume(cluster)
    cluster.end(cluster.name("driver"), 1, "ValueError: x")
    cluster.start()
    assert (cluster.phase, _mounted(cluster)) == ("Running", {"shared-document-2"})
    assert cluster.job["status"]["restarts"] == 1


@pytest.mark.parametrize("seen", [False, True], ids=["unseen", "seen"])
def test_a_short_suspension_replaces_pods_with_the_earlier_values(seen: bool) -> None:
    """Check a suspension that was over before the pods had ended, or before the operator saw it."""
    cluster = _running()
    before = {pod["metadata"]["uid"] for pod in cluster.pods.values()}
    _set(cluster, "spec.suspend", True)
    if seen:
        cluster.step()
    _set(cluster, "spec.checkpoint.everySteps", 7)
    _set(cluster, "spec.suspend", False)
    for _ in range(4):
        cluster.step()
        assert len(_mounted(cluster)) <= 1, "pods with two documents run"
    _end_pods(cluster)
    cluster.start()
    assert (cluster.phase, _generation(cluster), _mounted(cluster)) == ("Running", 2, {"shared-document-2"})
    assert not before & {pod["metadata"]["uid"] for pod in cluster.pods.values()}
    assert (len(_replacements(cluster)), cluster.job["status"]["restarts"]) == (1, 0)


def test_a_failed_job_is_retried_with_the_new_values() -> None:
    cluster = _running()
    cluster.end(cluster.name("trainer-0"), 1, "ValueError: x")
    cluster.settle()
    assert cluster.phase == "Failed"
    _set(cluster, "spec.suspend", True)
    _set(cluster, "spec.lifecycle.maxFailedGroups", 3)
    _set(cluster, "spec.suspend", False)
    cluster.job["metadata"]["annotations"] = {"kubealign.dev/retry": "a"}
    _end_pods(cluster)
    cluster.start()
    assert (cluster.phase, _mounted(cluster)) == ("Running", {"shared-document-2"})


def test_a_job_that_is_changed_before_its_start_has_one_document() -> None:
    job = _job()
    job["spec"]["suspend"] = True
    cluster = Cluster(job)
    cluster.settle()
    _set(cluster, "spec.checkpoint.everySteps", 7)
    _resume(cluster)
    assert (_generation(cluster), _config_maps(cluster)) == (1, ["shared-document"])
    assert _document(cluster, "shared-document")["spec"]["checkpoint"]["everySteps"] == 7


def test_a_running_job_of_an_earlier_release_keeps_its_pods() -> None:
    cluster = _running()
    recorded = cluster.job["status"].pop("document")
    before = set(cluster.pods)
    plan = cluster.settle()
    assert (plan.delete, plan.create, set(cluster.pods)) == ((), (), before)
    assert cluster.job["status"]["document"] == recorded
    _suspend(cluster)
    _set(cluster, "spec.checkpoint.everySteps", 7)
    _resume(cluster)
    assert _mounted(cluster) == {"shared-document-2"}


def test_a_suspended_job_of_an_earlier_release_resumes_with_the_new_values() -> None:
    cluster = _running()
    _suspend(cluster)
    del cluster.job["status"]["document"]
    cluster.settle()
    _set(cluster, "spec.checkpoint.everySteps", 7)
    _resume(cluster)
    assert _mounted(cluster) == {"shared-document-2"}
    assert _document(cluster, "shared-document-2")["spec"]["checkpoint"]["everySteps"] == 7


def test_a_release_with_other_fields_restarts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = _running()
    first = cluster.job["status"]["document"]["digest"]
    before = set(cluster.pods)
    monkeypatch.setattr(document, "MUTABLE_DOCUMENT_FIELDS", (*MUTABLE_DOCUMENT_FIELDS, "spec.seed"))
    plan = cluster.settle()
    assert (plan.delete, plan.create, set(cluster.pods)) == ((), (), before)
    assert _generation(cluster) == 1 and cluster.job["status"]["document"]["digest"] != first


def test_a_lost_status_does_not_go_back_to_an_earlier_document() -> None:
    cluster = _running()
    _suspend(cluster)
    _set(cluster, "spec.checkpoint.everySteps", 7)
    _resume(cluster)
    del cluster.job["status"]["document"]
    cluster.settle()
    assert (_generation(cluster), _mounted(cluster)) == (2, {"shared-document-2"})


@pytest.mark.parametrize("generation", [0, 2**31])
def test_a_senseless_generation_counts_as_none(generation: int) -> None:
    cluster = _running()
    cluster.job["status"]["document"]["generation"] = generation
    cluster.settle()
    assert (cluster.phase, _generation(cluster)) == ("Running", 1)


def test_a_refused_document_is_reported() -> None:
    cluster = _running()
    _suspend(cluster)
    _set(cluster, "spec.checkpoint.everySteps", 7)
    _set(cluster, "spec.suspend", False)
    cluster.job["status"] = cluster.rendered().status
    cluster.refusals["shared-document-2"] = "exceeded quota: configmaps"
    status = cluster.rendered().status
    assert status["message"] == "shared-document-2 was refused: exceeded quota: configmaps"


def test_pods_run_on_while_the_document_is_refused() -> None:
    cluster = _running()
    before = set(cluster.pods)
    _set(cluster, "spec.checkpoint.everySteps", 7)
    cluster.job["status"] = cluster.rendered().status
    cluster.objects.add(("Secret", "shared-credentials-2"))
    cluster.refusals["shared-document-2"] = "exceeded quota: configmaps"
    plan = cluster.rendered()
    assert (plan.delete, [item["metadata"]["name"] for item in plan.create]) == ((), ["shared-document-2"])
    assert plan.status["phase"] == "Running"
    assert plan.status["message"] == "shared-document-2 was refused: exceeded quota: configmaps"
    assert set(cluster.pods) == before
    cluster.refusals.clear()
    assert (
        cluster.rendered().status["message"]
        == "renewing credentials: waits for the ConfigMap shared-document-2"
    )
    _end_pods(cluster)
    cluster.start()
    assert (cluster.phase, _mounted(cluster)) == ("Running", {"shared-document-2"})


@pytest.mark.parametrize("short", [False, True], ids=["suspended", "short"])
@pytest.mark.parametrize("writes", range(5))
def test_an_operator_may_end_between_any_two_writes(short: bool, writes: int) -> None:
    """Check that every reconcile may be cut off after `writes` writes and the job still gets document 2."""
    cluster = CrashingCluster(_job())
    _running(cluster)
    if not short:
        _suspend(cluster)
    _set(cluster, "spec.checkpoint.everySteps", 7)
    _set(cluster, "spec.suspend", False)
    for _ in range(8):
        with suppress(OperatorCrash):
            cluster.step_until(writes)
        cluster.step()
        mounted = _mounted(cluster)
        assert len(mounted) <= 1, f"pods with two documents run: {mounted}"
        cluster.finish_leaving()
        cluster.serve()
    cluster.start()
    assert (cluster.phase, _generation(cluster), _mounted(cluster)) == ("Running", 2, {"shared-document-2"})
    assert _config_maps(cluster) == ["shared-document", "shared-document-2"]
    assert cluster.job["status"]["restarts"] == 0


def test_workers_of_the_resumed_job_have_one_disruption_budget_with_the_new_number() -> None:
    cluster = _running()
    _suspend(cluster)
    _set(cluster, "spec.rollout.minReplicas", 4)
    _resume(cluster)
    budgets = [item for (kind, _), item in cluster.manifests.items() if kind == "PodDisruptionBudget"]
    assert {budget["metadata"]["name"]: budget["spec"]["minAvailable"] for budget in budgets} == {
        "shared-rollout": 1,
        "shared-rollout-document-2": 3,
    }
    pods = [pod["metadata"]["labels"] for pod in cluster.pods.values()]
    workers = [labels for labels in pods if labels["kubealign.dev/group"] == "rollout"]
    assert len(workers) == 5
    for labels in workers:
        (budget,) = [item for item in budgets if _selects(item["spec"]["selector"], labels)]
        assert budget["spec"]["minAvailable"] == 3


def _selects(selector: Json, labels: dict[str, str]) -> bool:
    """Evaluate a label selector with the operators that the budgets use."""
    expressions = selector.get("matchExpressions", [])
    assert {expression["operator"] for expression in expressions} <= {"DoesNotExist"}
    return labels.items() >= selector["matchLabels"].items() and not any(
        expression["key"] in labels for expression in expressions
    )


def test_a_queued_job_asks_again_with_the_new_smallest_number_of_workers() -> None:
    job = _job()
    job["metadata"]["labels"] = dict(QUEUE)
    cluster = Cluster(job, platform=replace(PLATFORM, uses_kueue=True))
    cluster.settle()
    (first,) = cluster.workloads
    cluster.admit(first)
    _running(cluster)
    assert _min_count(cluster) == 2
    _suspend(cluster)
    assert cluster.workloads == {}
    _set(cluster, "spec.rollout.minReplicas", 4)
    _set(cluster, "spec.suspend", False)
    cluster.settle()
    assert (cluster.phase, _min_count(cluster)) == ("Pending", 4)
    (second,) = cluster.workloads
    cluster.admit(second, rollout=4)
    cluster.start()
    assert (cluster.phase, _mounted(cluster)) == ("Running", {"shared-document-2"})


def _min_count(cluster: Cluster) -> int:
    (workload,) = cluster.workloads.values()
    (pod_set,) = [item for item in workload["spec"]["podSets"] if item["name"] == "rollout"]
    return int(pod_set["minCount"])


def test_a_job_without_rollout_workers_has_a_digest() -> None:
    cluster = Cluster(sft())
    cluster.start()
    assert _generation(cluster) == 1
    _set(cluster, "spec.checkpoint.keep", 5)
    cluster.settle()
    assert _generation(cluster) == 2


def test_pods_get_the_new_grace_period() -> None:
    cluster = _running()
    _suspend(cluster)
    _set(cluster, "spec.lifecycle.gracePeriodSeconds", 90.0)
    _resume(cluster)
    driver = cluster.pods[cluster.name("driver")]
    assert driver["spec"]["terminationGracePeriodSeconds"] > 90
