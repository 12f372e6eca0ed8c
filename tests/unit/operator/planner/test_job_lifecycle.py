"""The lifecycle of a job, transition by transition."""

import copy
from dataclasses import replace
from pathlib import PurePosixPath

import pytest

from kubealign.pod_contract import ENV_SETTINGS, PodSettings
from kubealign.spec.algorithms import ResultKind
from kubealign.spec.status import AlignmentJobStatus
from kubealign_operator.kube_views.observed_job import DependencyView, DriverProgress, VolumePath
from kubealign_operator.planner.plan import PodDeletion
from support.rendering.cluster import Cluster
from support.rendering.jobs import PLATFORM, ppo, sft, two_ranks

_SFT = DependencyView(
    "sft", "11111111-a", phase="Succeeded", result=VolumePath("runs", "sft-11111111/result")
)


def _ppo() -> Cluster:
    return Cluster(ppo(), dependencies={"sft": _SFT})


def test_bus_and_preparation_come_first_then_the_roles_then_the_driver() -> None:
    cluster = _ppo()
    cluster.settle()
    assert cluster.short_names() == ["nats", "prepare"]
    assert cluster.phase == "Starting"
    cluster.run(cluster.name("nats"))
    cluster.run(cluster.name("prepare"))
    cluster.settle()
    assert cluster.short_names() == ["nats", "prepare"]
    assert cluster.message == "waits for prepare to finish"
    cluster.end(cluster.name("prepare"), 0)
    cluster.settle()
    assert cluster.short_names() == [
        "nats",
        "prepare",
        "trainer-0",
        "trainer-1",
        "critic-0",
        "reference-0",
        "reward-helpful-0",
        "reward-format-0",
        "rollout-0",
        "rollout-1",
        "rollout-2",
    ]
    cluster.serve()
    cluster.settle()
    assert cluster.phase == "Running"
    assert "driver" in cluster.short_names()
    assert cluster.message == "waits for driver to be ready"
    cluster.serve()
    cluster.settle()
    assert cluster.message == ""
    assert cluster.condition("Ready")["status"] == "True"
    assert cluster.job["status"]["selector"] == (
        f"kubealign.dev/job-uid={cluster.job['metadata']['uid']},kubealign.dev/group=rollout"
    )
    assert cluster.job["status"]["rolloutReplicas"] == 3


def test_the_driver_starts_with_min_replicas_rollout_workers() -> None:
    cluster = _ppo()
    cluster.settle()
    cluster.serve()
    cluster.end(cluster.name("prepare"), 0)
    cluster.settle()
    cluster.unschedulable(
        cluster.name("rollout-2"), "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
    )
    for process in cluster.short_names():
        if process not in ("nats", "prepare", "rollout-2"):
            cluster.run(cluster.name(process))
    cluster.settle()
    assert cluster.phase == "Running"
    assert cluster.condition("Ready")["reason"] == "Unschedulable"


def test_a_finished_driver_completes_the_job_and_pods_are_kept_for_logs() -> None:
    cluster = Cluster(sft())
    cluster.start()
    cluster.pass_time(100)
    cluster.progress = DriverProgress(step=10, max_steps=10, weight_version=10, reward=0.5, kl=0.1)
    cluster.step()
    cluster.end(cluster.name("driver"), 0)
    rendered = cluster.step()
    assert cluster.phase == "Succeeded"
    assert {stop.name for stop in rendered.stop} == {"sft-nats-0", "sft-trainer-0-0"}
    assert rendered.delete == () and rendered.create == ()
    assert cluster.job["status"]["result"] == {"claimName": "runs", "path": "team/sft-6f1f7d0e/result"}
    assert cluster.job["status"]["activeSeconds"] == 100
    assert "activeSince" not in cluster.job["status"]
    assert cluster.message == "succeeded after step 10"
    cluster.settle()
    cluster.finish_leaving()
    cluster.settle()
    assert len(cluster.pods) == 4
    assert [role["ready"] for role in cluster.job["status"]["roles"]] == [0, 0, 0, 0]


def test_a_finished_job_never_runs_again() -> None:
    cluster = Cluster(sft())
    cluster.start()
    cluster.end(cluster.name("driver"), 0)
    cluster.settle()
    created = list(cluster.made)
    for name in list(cluster.pods):
        cluster.vanish(name)
        cluster.settle()
    cluster.objects.clear()
    cluster.job["spec"]["lifecycle"] = {"ttlSecondsAfterFinished": 60}
    cluster.settle()
    cluster.job["spec"]["maxSteps"] = 100
    cluster.settle()
    assert cluster.made == created
    assert cluster.objects == set()
    assert cluster.phase == "Succeeded"


def test_a_finished_job_is_deleted_after_its_ttl() -> None:
    cluster = Cluster(sft(lifecycle={"ttlSecondsAfterFinished": 600}))
    cluster.start()
    cluster.end(cluster.name("driver"), 0)
    cluster.settle()
    cluster.pass_time(300)
    assert cluster.rendered().requeue_after == pytest.approx(300, abs=1)
    assert not cluster.rendered().delete_job
    cluster.pass_time(300)
    assert cluster.rendered().delete_job


def test_suspend_stops_the_driver_first_and_resume_skips_preparation() -> None:
    cluster = _ppo()
    cluster.start()
    cluster.progress = DriverProgress(step=4)
    cluster.settle()
    cluster.pass_time(50)
    cluster.job["spec"]["suspend"] = True
    cluster.settle()
    assert cluster.phase == "Suspending"
    assert [name for name, pod in cluster.pods.items() if "deletionTimestamp" in pod["metadata"]] == [
        "ppo-driver-0"
    ]
    cluster.finish_leaving()
    cluster.settle()
    assert all("deletionTimestamp" in pod["metadata"] for pod in cluster.pods.values())
    cluster.finish_leaving()
    cluster.settle()
    assert cluster.phase == "Suspended"
    assert cluster.pods == {}
    assert cluster.job["status"]["activeSeconds"] == 50
    assert cluster.message == "suspended at step 4; set spec.suspend to false to resume"
    assert cluster.job["status"]["rolloutReplicas"] == 0
    cluster.pass_time(5000)
    cluster.settle()
    assert cluster.phase == "Suspended"
    cluster.job["spec"]["suspend"] = False
    cluster.settle()
    assert cluster.phase == "Starting"
    assert cluster.short_names() == ["nats"]
    cluster.serve()
    cluster.settle()
    assert "trainer-0" in cluster.short_names() and "prepare" not in cluster.short_names()
    cluster.serve()
    cluster.settle()
    assert cluster.phase == "Running"
    assert cluster.condition("Suspended")["status"] == "False"


def test_a_driver_that_finishes_while_the_job_is_suspended_has_succeeded() -> None:
    cluster = Cluster(sft())
    cluster.start()
    cluster.job["spec"]["suspend"] = True
    cluster.settle()
    cluster.end(cluster.name("driver"), 0)
    cluster.settle()
    assert cluster.phase == "Succeeded"


def test_a_job_created_suspended_creates_nothing() -> None:
    cluster = Cluster(sft(suspend=True))
    cluster.settle()
    assert cluster.phase == "Suspended"
    assert cluster.pods == {} and cluster.objects == set()
    cluster.job["spec"]["suspend"] = False
    cluster.settle()
    assert cluster.phase == "Starting"


def test_a_revoked_suspension_stops_the_pods_and_restarts() -> None:
    cluster = Cluster(sft())
    cluster.start()
    cluster.job["spec"]["suspend"] = True
    cluster.settle()
    cluster.job["spec"]["suspend"] = False
    cluster.settle()
    assert cluster.phase == "Suspending"
    cluster.finish_leaving()
    cluster.settle()
    cluster.finish_leaving()
    cluster.settle()
    assert cluster.phase == "Starting"
    assert cluster.short_names() == ["nats"]


def test_scale_down_removes_the_highest_indices_and_scale_up_recreates_them() -> None:
    cluster = _ppo()
    cluster.job["spec"]["rollout"]["minReplicas"] = 1
    cluster.start()
    cluster.job["spec"]["rollout"] = {"replicas": 1, "minReplicas": 1}
    rendered = cluster.step()
    assert [deletion.name for deletion in rendered.delete] == ["ppo-rollout-2-0", "ppo-rollout-1-0"]
    assert all(deletion.grace_seconds is None for deletion in rendered.delete)
    cluster.settle()
    assert cluster.job["status"]["rolloutReplicas"] == 1
    cluster.job["spec"]["rollout"] = {"replicas": 5, "minReplicas": 1}
    cluster.settle()
    # The names of terminating pods are still in use.
    assert cluster.made[-2:] == ["ppo-rollout-3-0", "ppo-rollout-4-0"]
    cluster.finish_leaving()
    cluster.settle()
    assert cluster.job["status"]["rolloutReplicas"] == 5
    assert cluster.job["status"]["restarts"] == 0
    assert cluster.phase == "Running"


@pytest.mark.parametrize(
    ("view", "message"),
    [
        (None, "waits for job sft, which does not exist in namespace team"),
        (DependencyView("sft", "1"), "waits for job sft, which is Pending"),
        (DependencyView("sft", "1", phase="Running"), "waits for job sft, which is Running"),
    ],
)
def test_a_job_waits_for_its_dependencies(view: DependencyView | None, message: str) -> None:
    cluster = Cluster(ppo(), dependencies={"sft": view})
    cluster.settle()
    assert (cluster.phase, cluster.message) == ("Pending", message)
    assert cluster.condition("DependenciesReady")["status"] == "False"
    assert cluster.pods == {} and cluster.objects == set()
    cluster.dependencies["sft"] = _SFT
    cluster.settle()
    assert cluster.phase == "Starting"
    assert cluster.job["status"]["dependencies"] == [
        {"name": "sft", "claimName": "runs", "path": "sft-11111111/result"}
    ]


def test_a_dependency_cycle_is_shown_in_the_message() -> None:
    cluster = Cluster(ppo(), dependencies={"sft": DependencyView("sft", "1")}, circle=("ppo", "sft", "ppo"))
    cluster.settle()
    assert cluster.phase == "Pending"
    assert cluster.message == (
        "circular dependency: ppo needs sft needs ppo; none of these jobs can start: "
        "delete one and name another model in it"
    )
    # The other job was deleted and recreated without the cycle.
    cluster.circle, cluster.dependencies["sft"] = (), _SFT
    cluster.settle()
    assert cluster.phase == "Starting"


def test_a_failed_dependency_fails_the_job_with_its_message() -> None:
    failed = DependencyView("sft", "1", phase="Failed", message="trainer-0: there is no column prompt")
    cluster = Cluster(ppo(), dependencies={"sft": failed})
    cluster.settle()
    assert cluster.phase == "Failed"
    assert cluster.message == (
        "job sft, whose result is needed, failed: trainer-0: there is no column prompt"
    )
    assert cluster.condition("Failed")["reason"] == "DependencyFailed"


def test_a_resolved_result_survives_the_deletion_of_its_job() -> None:
    cluster = _ppo()
    cluster.start()
    cluster.dependencies["sft"] = None
    cluster.delete(cluster.name("driver"))
    cluster.settle()
    cluster.finish_leaving()
    cluster.settle()
    claims = [
        volume["persistentVolumeClaim"]["claimName"]
        for volume in cluster.pods[cluster.name("driver")]["spec"]["volumes"]
        if "persistentVolumeClaim" in volume
    ]
    assert "runs" in claims
    assert cluster.phase == "Running"


@pytest.mark.parametrize(
    ("makes", "description"), [(ResultKind.REWARD_MODEL, "a reward model"), (ResultKind.DATA, "data")]
)
def test_a_result_of_the_wrong_kind_is_reported(makes: ResultKind, description: str) -> None:
    view = DependencyView("sft", "1", phase="Succeeded", makes=makes, result=VolumePath("runs", "x"))
    cluster = Cluster(ppo(), dependencies={"sft": view})
    cluster.settle()
    assert cluster.phase == "Pending"
    assert (
        f"spec.policy.model.job.name: must be a job that makes a policy: sft makes {description}"
        in cluster.message
    )


def test_rows_of_another_job_are_awaited_and_mounted() -> None:
    view = DependencyView("samples", "2", phase="Running", makes=ResultKind.DATA)
    demonstrations = {"demonstrations": {"source": {"job": {"name": "samples"}}}}
    cluster = Cluster(sft(data=demonstrations), dependencies={"samples": view})
    cluster.settle()
    assert (cluster.phase, cluster.message) == ("Pending", "waits for job samples, which is Running")
    result = VolumePath("made", "samples-2/result")
    cluster.dependencies["samples"] = replace(view, phase="Succeeded", result=result)
    cluster.settle()
    assert cluster.phase == "Starting"
    prepare = cluster.pods[cluster.name("prepare")]["spec"]
    (volume,) = (
        entry["name"]
        for entry in prepare["volumes"]
        if entry.get("persistentVolumeClaim") == {"claimName": "made"}
    )
    container = prepare["containers"][0]
    mounts = {entry["name"]: entry for entry in container["volumeMounts"]}
    assert (mounts[volume]["mountPath"], mounts[volume]["readOnly"]) == ("/volumes/made", True)
    (settings,) = (entry["value"] for entry in container["env"] if entry["name"] == ENV_SETTINGS)
    pod_settings = PodSettings.model_validate_json(settings)
    assert pod_settings.results == {"samples": PurePosixPath("/volumes/made/samples-2/result")}


def test_rows_of_a_job_that_generates_none_are_rejected() -> None:
    view = DependencyView("samples", "2", phase="Succeeded", result=VolumePath("made", "x"))
    validation = {"data": {"demonstrations": {"source": {"job": {"name": "samples"}}}}}
    cluster = Cluster(sft(validation=validation), dependencies={"samples": view})
    cluster.settle()
    path = "spec.validation.data.demonstrations.source.job.name"
    assert f"{path}: must be a job that makes data: samples makes a policy" in cluster.message


def test_the_deadline_excludes_suspensions() -> None:
    cluster = Cluster(sft(lifecycle={"activeDeadlineSeconds": 100}))
    cluster.start()
    cluster.pass_time(60)
    assert cluster.rendered().requeue_after == pytest.approx(40, abs=1)
    cluster.job["spec"]["suspend"] = True
    cluster.settle()
    for _ in range(2):
        cluster.finish_leaving()
        cluster.settle()
    cluster.pass_time(1000)
    cluster.job["spec"]["suspend"] = False
    cluster.start()
    assert cluster.phase == "Running"
    cluster.pass_time(40)
    rendered = cluster.step()
    assert cluster.phase == "Failed"
    assert cluster.message == "the job has run for 100 s (lifecycle.activeDeadlineSeconds)"
    # The driver writes its checkpoint before the other pods stop.
    assert [stop.name for stop in rendered.stop] == ["sft-driver-0"]
    cluster.finish_leaving()
    cluster.settle()
    assert all(pod["spec"].get("activeDeadlineSeconds") == 1 for pod in cluster.pods.values())


def test_a_hanging_driver_delays_the_others_by_its_grace_period_only() -> None:
    cluster = Cluster(sft(lifecycle={"activeDeadlineSeconds": 100}))
    cluster.start()
    cluster.pass_time(100)
    cluster.settle()
    cluster.pass_time(120)
    assert {stop.name for stop in cluster.step().stop} == {"sft-nats-0", "sft-trainer-0-0"}


def test_pods_that_never_started_are_deleted_at_the_end() -> None:
    cluster = _ppo()
    cluster.start()
    cluster.job["spec"]["rollout"] = {"replicas": 4, "minReplicas": 2}
    cluster.settle()
    cluster.end(cluster.name("driver"), 0)
    rendered = cluster.step()
    assert [deletion.name for deletion in rendered.delete] == ["ppo-rollout-3-0"]


def test_a_job_being_deleted_is_left_alone() -> None:
    cluster = Cluster(sft())
    cluster.start()
    before = copy.deepcopy(cluster.job["status"])
    cluster.job["metadata"]["deletionTimestamp"] = "2026-03-01T12:00:00Z"
    cluster.delete(cluster.name("trainer-0"))
    rendered = cluster.rendered()
    assert rendered.status == before
    assert (rendered.create, rendered.delete, rendered.stop, rendered.delete_job) == ((), (), (), False)


def test_a_pod_on_an_unreachable_node_stays_until_kubernetes_removes_it() -> None:
    cluster = Cluster(sft())
    cluster.start()
    cluster.delete(cluster.name("trainer-0"))
    cluster.pass_time(3600)
    rendered = cluster.step()
    assert (rendered.delete, rendered.create) == ((), ())
    uid = cluster.pods[cluster.name("trainer-0")]["metadata"]["uid"]
    # The node is gone: the garbage collector removes the pod.
    cluster.vanish(cluster.name("trainer-0"))
    cluster.settle()
    assert cluster.pods[cluster.name("trainer-0")]["metadata"]["uid"] != uid
    assert cluster.job["status"]["restarts"] == 0


def test_suspension_names_the_pod_that_it_waits_for() -> None:
    cluster = Cluster(sft())
    cluster.start()
    cluster.job["spec"]["suspend"] = True
    cluster.settle()
    cluster.pass_time(3600)
    cluster.settle()
    assert cluster.phase == "Suspending"
    assert "its node node-1 has not confirmed that pod sft-driver-0 ended" in cluster.message


def test_a_pod_on_an_unreachable_node_is_force_deleted_if_the_job_allows_it() -> None:
    cluster = Cluster(sft(lifecycle={"forceDeleteLostPods": True}))
    cluster.start()
    cluster.delete(cluster.name("trainer-0"))
    cluster._condition(
        cluster.pods[cluster.name("trainer-0")], "DisruptionTarget", "True", "DeletionByTaintManager"
    )
    rendered = cluster.step()
    assert rendered.requeue_after == pytest.approx(35 + 60, abs=1)
    cluster.pass_time(96)
    name, uid = "sft-trainer-0-0", cluster.pods[cluster.name("trainer-0")]["metadata"]["uid"]
    assert cluster.step().delete == (PodDeletion(name, uid, 0),)
    cluster.settle()
    assert cluster.pods[cluster.name("trainer-0")]["metadata"]["uid"] != uid
    assert cluster.job["status"]["restarts"] == 0


def test_an_unchanged_status_is_not_patched() -> None:
    cluster = _ppo()
    cluster.start()
    writes = cluster.writes
    for _ in range(5):
        cluster.pass_time(7)
        cluster.step()
    assert cluster.writes == writes


def test_the_status_has_the_shape_that_the_sdk_reads() -> None:
    cluster = _ppo()
    cluster.progress = DriverProgress(step=3, max_steps=10, weight_version=3, reward=-0.15237752, kl=0.01)
    cluster.start()
    status = AlignmentJobStatus.model_validate(cluster.job["status"])
    assert (status.step, status.max_steps, status.weight_version) == (3, 10, 3)
    assert (status.reward, status.kl) == (-0.1524, 0.01)
    assert status.roles is not None
    assert [(role.name, role.replicas, role.ready) for role in status.roles] == [
        ("nats", 1, 1),
        ("prepare", 1, 1),
        ("trainer", 2, 2),
        ("critic", 1, 1),
        ("reference", 1, 1),
        ("reward-helpful", 1, 1),
        ("reward-format", 1, 1),
        ("rollout", 3, 3),
        ("driver", 1, 1),
    ]


def test_the_drivers_wait_reason_is_shown() -> None:
    cluster = Cluster(sft())
    cluster.start()
    cluster.progress = DriverProgress(step=3, waiting_for="trainer, for 40 s")
    cluster.step()
    assert cluster.message == "waits for trainer, for 40 s"


def test_every_transition_emits_one_event() -> None:
    cluster = Cluster(two_ranks())
    cluster.start()
    cluster.end(cluster.name("driver"), 0)
    cluster.settle()
    assert [event.reason for event in cluster.events] == ["Starting", "Running", "Succeeded"]


def test_a_job_of_the_same_name_waits_for_the_old_pods_to_be_deleted() -> None:
    old = Cluster(sft())
    old.start()
    cluster = Cluster(sft(), pods=copy.deepcopy(old.pods))
    cluster.job["metadata"]["uid"] = "22222222-another"
    cluster.settle()
    assert cluster.made == []
    assert "waits until the pod sft-nats-0, which is not this job's, is gone" in cluster.message
    cluster.pods.clear()
    cluster.settle()
    assert cluster.short_names() == ["nats", "prepare"]


def test_a_resumed_job_is_made_from_the_templates_that_changed_meanwhile() -> None:
    cluster = Cluster(sft())
    cluster.start()
    cluster.job["spec"]["suspend"] = True
    for _ in range(3):
        cluster.settle()
        cluster.finish_leaving()
    cluster.settle()
    assert cluster.phase == "Suspended"
    container = {"name": "main", "resources": {"limits": {"memory": "64Gi"}}}
    cluster.job["spec"]["trainer"] = {"podTemplate": {"spec": {"containers": [container]}}}
    cluster.job["spec"]["suspend"] = False
    cluster.start()
    assert cluster.phase == "Running"
    (main,) = cluster.pods[cluster.name("trainer-0")]["spec"]["containers"]
    assert main["resources"]["limits"]["memory"] == "64Gi"


def test_a_job_keeps_its_image_until_it_is_retried() -> None:
    def image(process: str) -> str:
        return str(cluster.pods[cluster.name(process)]["spec"]["containers"][0]["image"])

    cluster = Cluster(sft())
    cluster.start()
    assert cluster.job["status"]["image"] == PLATFORM.image
    cluster.platform = replace(PLATFORM, image="kubealign/services:2")
    cluster.end(cluster.name("trainer-0"), 1)
    cluster.settle()
    cluster.pass_time(60)
    cluster.settle()
    cluster.finish_leaving()
    cluster.start()
    assert cluster.name("trainer-0").endswith("-1")
    assert {image(process) for process in ("trainer-0", "nats", "driver")} == {PLATFORM.image}
    cluster.end(cluster.name("driver"), 78)
    cluster.settle()
    cluster.finish_leaving()
    cluster.job["metadata"]["annotations"] = {"kubealign.dev/retry": "1"}
    cluster.start()
    assert {image(process) for process in ("trainer-0", "nats", "driver")} == {"kubealign/services:2"}
