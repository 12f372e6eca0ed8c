"""Lifecycle of a job on a real API server: suspend, scale, failures, TTL and dependencies."""

import json
from collections.abc import Callable
from typing import Any

from kubernetes import client

from cluster.support.behaviour import Behaviour, Exit, Json, Waiting
from cluster.support.cluster_jobs import finishing, process_of, rloo, sft, until_told
from cluster.support.operator_process import OperatorProcess
from cluster.support.simulated_kubelet import SimulatedKubelet
from cluster.support.team import Runs, Team


def _patch(team: Team, name: str, spec: Json) -> None:
    api = client.CustomObjectsApi(team.control_plane.api)
    where = ("kubealign.dev", "v1alpha1", team.namespace, "alignmentjobs", name)
    api.patch_namespaced_custom_object(*where, {"spec": spec})


def _says(team: Team, name: str, text: str) -> Callable[[], bool]:
    def so() -> bool:
        status: Any = team.job(name).get("status", {})
        return text in status.get("message", "")

    return so


def test_suspend_frees_the_pods_and_resume_brings_them_back(
    team: Team, operator: OperatorProcess, simulated: SimulatedKubelet
) -> None:
    simulated.behave = lambda pod: (
        Behaviour(stop_after=0.5) if process_of(pod) != "prepare" else finishing(pod)
    )
    team.apply(sft("one"))
    team.until_phase("one", "Running")
    before = set(team.pods().values())
    _patch(team, "one", {"suspend": True})
    team.until_phase("one", "Suspended")
    assert not [name for name in team.pods() if not name.endswith("-prepare-0")]
    _patch(team, "one", {"suspend": False})
    team.until_phase("one", "Running")
    assert not {uid for name, uid in team.pods().items() if not name.endswith("-prepare-0")} & before


def _job_mounts(team: Team) -> set[str]:
    """Return the ConfigMaps from which the pods of the namespace read their job."""
    pods = client.CoreV1Api(team.control_plane.api).list_namespaced_pod(team.namespace).items
    volumes = [volume for pod in pods for volume in pod.spec.volumes if volume.name == "kubealign-job"]
    return {volume.config_map.name for volume in volumes}


def test_a_suspended_job_resumes_with_changed_checkpoints_and_workers(
    team: Team, operator: OperatorProcess, simulated: SimulatedKubelet
) -> None:
    simulated.behave = lambda pod: (
        Behaviour(stop_after=0.5) if process_of(pod) != "prepare" else finishing(pod)
    )
    team.apply(rloo("one", rollout={"replicas": 3, "minReplicas": 2}))
    team.until_phase("one", "Running")
    first = team.job("one")["status"]["document"]
    assert (first["generation"], _job_mounts(team)) == (1, {"one-document"})
    _patch(team, "one", {"suspend": True})
    team.until_phase("one", "Suspended")
    _patch(team, "one", {"checkpoint": {"everySteps": 7}, "rollout": {"minReplicas": 3}})
    _patch(team, "one", {"suspend": False})
    team.until_phase("one", "Running")
    assert _job_mounts(team) == {"one-document-2"}
    second = team.job("one")["status"]["document"]
    assert second["generation"] == 2 and second["digest"] != first["digest"]
    core = client.CoreV1Api(team.control_plane.api)
    documents = [
        json.loads(core.read_namespaced_config_map(name, team.namespace).data["job.json"])["spec"]
        for name in ("one-document", "one-document-2")
    ]
    assert [spec["checkpoint"]["everySteps"] for spec in documents] == [50, 7]
    assert [spec["rollout"]["minReplicas"] for spec in documents] == [2, 3]
    # An operator that has just started finds the second document.
    operator.daemon.kill()
    operator.start()
    before = team.pods()
    _patch(team, "one", {"rollout": {"replicas": 4}})
    team.until(lambda: "one-rollout-3-0" in team.pods(), "the fourth worker")
    assert team.pods().items() >= before.items() and _job_mounts(team) == {"one-document-2"}
    assert team.job("one")["status"]["document"] == second
    # A suspension that is over before the pods have ended.
    _patch(team, "one", {"suspend": True})
    _patch(team, "one", {"checkpoint": {"everySteps": 9}})
    _patch(team, "one", {"suspend": False})
    team.until(lambda: _job_mounts(team) == {"one-document-3"}, "pods with the third document")
    team.until_phase("one", "Running")
    assert not {uid for name, uid in team.pods().items() if not name.endswith("-prepare-0")} & set(
        before.values()
    )
    assert team.job("one")["status"].get("restarts", 0) == 0


def test_the_resumed_workers_have_one_disruption_budget(
    team: Team, operator: OperatorProcess, simulated: SimulatedKubelet
) -> None:
    """Check that a worker can be evicted: the API server refuses the eviction of a pod with two budgets."""
    simulated.behave = until_told
    team.apply(rloo("one", rollout={"replicas": 3, "minReplicas": 2}))
    team.until_phase("one", "Running")
    _patch(team, "one", {"suspend": True})
    team.until_phase("one", "Suspended")
    _patch(team, "one", {"rollout": {"minReplicas": 3}})
    _patch(team, "one", {"suspend": False})
    team.until_phase("one", "Running")
    policy = client.PolicyV1Api(team.control_plane.api)

    def counted() -> bool:
        budgets = policy.list_namespaced_pod_disruption_budget(team.namespace).items
        workers = {
            budget.metadata.name: (budget.spec.min_available, budget.status.current_healthy)
            for budget in budgets
            if budget.metadata.name.startswith("one-rollout")
        }
        return workers == {"one-rollout": (1, 0), "one-rollout-document-2": (2, 3)}

    team.until(counted, "the budgets to count the workers")
    core = client.CoreV1Api(team.control_plane.api)
    metadata = client.V1ObjectMeta(name="one-rollout-2-0", namespace=team.namespace)
    core.create_namespaced_pod_eviction(
        "one-rollout-2-0", team.namespace, client.V1Eviction(metadata=metadata)
    )


def test_scale_changes_the_workers_only(
    team: Team, operator: OperatorProcess, simulated: SimulatedKubelet
) -> None:
    simulated.behave = until_told
    team.apply(rloo("one"))
    team.until_phase("one", "Running")
    before = team.pods()
    kubectl = team.control_plane.kubectl
    for replicas in (4, 1):
        kubectl("scale", "aj/one", f"--replicas={replicas}", "-n", team.namespace)
        expected = {f"one-rollout-{number}-0" for number in range(replicas)}
        team.until(
            lambda expected=expected: {name for name in team.pods() if "rollout" in name} == expected,
            f"{replicas} workers",
        )
        team.until(
            lambda replicas=replicas: team.job("one")["status"].get("rolloutReplicas") == replicas,
            "the count in the status",
        )
    after = team.pods()
    unchanged = {name for name in before if "rollout" not in name or name.endswith("rollout-0-0")}
    assert {name: after[name] for name in unchanged} == {name: before[name] for name in unchanged}


def test_a_rank_that_crashes_takes_its_group_along(
    team: Team, operator: OperatorProcess, simulated: SimulatedKubelet
) -> None:
    simulated.behave = until_told
    team.apply(rloo("one"))
    team.until_phase("one", "Running")
    before = team.pods()
    simulated.exit(team.namespace, "one-trainer-1-0", Exit(1, "the loss is not a number"))
    # The pod that crashed is kept for its log.
    ranks = {"one-trainer-1-0", "one-trainer-0-1", "one-trainer-1-1"}
    team.until(
        lambda: ranks == {name for name in team.pods() if "trainer" in name}, "both ranks to be replaced"
    )
    team.until(lambda: team.job("one")["status"].get("restarts") == 1, "one restart to be counted")
    workers = [name for name in before if "rollout" in name]
    assert {name: team.pods()[name] for name in workers} == {name: before[name] for name in workers}


def test_the_last_failed_pod_of_a_rank_is_kept(
    team: Team, operator: OperatorProcess, simulated: SimulatedKubelet
) -> None:
    simulated.behave = until_told
    team.apply(rloo("one"))
    team.until_phase("one", "Running")

    def trainers() -> dict[str, str]:
        return {name: phase for name, phase in team.pod_phases().items() if "trainer" in name}

    def is_complete() -> bool:
        [trainer] = [role for role in team.job("one")["status"]["roles"] if role["name"] == "trainer"]
        return bool(trainer["ready"] == trainer["replicas"] == 2) and not team.job("one")["status"].get(
            "message"
        )

    for attempt in range(2):
        crashed = f"one-trainer-1-{attempt}"
        simulated.exit(team.namespace, crashed, Exit(1, "the loss is not a number"))
        expected = {
            crashed: "Failed",
            f"one-trainer-0-{attempt + 1}": "Running",
            f"one-trainer-1-{attempt + 1}": "Running",
        }
        team.until(lambda expected=expected: trainers() == expected, f"{expected}")
        message = (
            f"trainer-1 ended with code 1: the loss is not a number; starting trainer again "
            f"({attempt + 1} of 10 restarts used)"
        )
        for rank in range(2):
            event = (f"one-trainer-{rank}-{attempt}", "Warning", "Restarted", message)
            team.until(lambda event=event: event in team.pod_events(), f"the event {event}")
        team.until(is_complete, "both ranks to be ready")
    assert team.job("one")["status"]["restarts"] == 2
    _patch(team, "one", {"suspend": True})
    team.until_phase("one", "Suspended")
    assert trainers() == {}
    reasons = {(name, reason) for name, _, reason, _ in team.pod_events()}
    assert {("one-trainer-1-0", "Superseded"), ("one-driver-0", "Suspending")} <= reasons


def test_a_permanent_failure_ends_the_job_with_its_message(
    team: Team, operator: OperatorProcess, simulated: SimulatedKubelet
) -> None:
    simulated.behave = runs = Runs(
        lambda pod: (
            Behaviour(exit=Exit(78, "data/train.jsonl has no rows"))
            if process_of(pod) == "prepare"
            else Behaviour()
        )
    )
    team.apply(sft("one"))
    team.until_phase("one", "Failed")
    assert "data/train.jsonl has no rows" in team.job("one")["status"]["message"]
    assert all(len(uids) == 1 for uids in runs.uids.values())


def test_an_image_that_cannot_be_pulled_is_reported(
    team: Team, operator: OperatorProcess, simulated: SimulatedKubelet
) -> None:
    why = Waiting("ImagePullBackOff", 'Back-off pulling image "none"')
    simulated.behave = lambda pod: Behaviour(stuck=why)
    team.apply(sft("one"))
    team.until(_says(team, "one", "image"), "the image in the job's message")


def test_a_finished_job_goes_after_its_time(
    team: Team, operator: OperatorProcess, simulated: SimulatedKubelet
) -> None:
    simulated.behave = finishing
    team.apply(sft("one", lifecycle={"ttlSecondsAfterFinished": 3}))
    team.until_phase("one", "Succeeded")
    team.until(lambda: "one" not in team.phases(), "the job to be deleted")
    team.until(lambda: not team.pods(), "its pods to go")


def test_a_job_waits_for_the_one_that_it_needs(
    team: Team, operator: OperatorProcess, simulated: SimulatedKubelet
) -> None:
    simulated.behave = finishing
    team.apply(rloo("two", policy={"model": {"job": {"name": "one"}}}))
    team.until(_says(team, "two", "one"), "the missing job in the message")
    assert team.phases() == {"two": "Pending"}
    team.apply(sft("one"))
    team.until_phase("two", "Succeeded")


def test_jobs_that_wait_for_one_another_say_so(
    team: Team, operator: OperatorProcess, simulated: SimulatedKubelet
) -> None:
    simulated.behave = finishing
    ring = {"one": "two", "two": "three", "three": "one"}
    for name, needed in ring.items():
        team.apply(rloo(name, policy={"model": {"job": {"name": needed}}}))
    cycle = "circular dependency: one needs two needs three needs one"
    team.until(_says(team, "one", cycle), "the way in one")
    team.until(_says(team, "three", "three needs one needs two needs three"), "the way in three")
    team.control_plane.kubectl("delete", "aj/three", "-n", team.namespace)
    team.apply(sft("three"))
    team.until_phase("one", "Succeeded")
