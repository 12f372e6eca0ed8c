"""Generations of a job's credentials: renewal at a resume, at a retry, before the expiry, and on demand."""

from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from kubealign.labels import CREDENTIALS_LABEL
from kubealign_operator.kube_views.observed_job import DependencyView
from support.rendering.cluster import Cluster
from support.rendering.crashing_cluster import CrashingCluster, OperatorCrash
from support.rendering.jobs import PLATFORM, ppo, sft, two_ranks

_DAY = 86_400
_FINALIZER = "example.org/audit"


def _running(job: dict[str, Any] | None = None) -> Cluster:
    cluster = Cluster(job or two_ranks(lifecycle={"maxRestarts": 0, "activeDeadlineSeconds": 1_000_000_000}))
    cluster.start()
    assert cluster.phase == "Running"
    return cluster


def _request(cluster: Cluster, value: str) -> None:
    cluster.job["metadata"].setdefault("annotations", {})["kubealign.dev/renew-credentials"] = value


def _generation(cluster: Cluster) -> int:
    return int(cluster.job["status"]["credentials"]["generation"])


def _secrets(cluster: Cluster) -> list[str]:
    return sorted(name for kind, name in cluster.objects if kind == "Secret")


def _mounted(cluster: Cluster) -> set[str]:
    """Return the Secrets that the pods mount, and check that the pods name their generation."""
    mounted = set()
    for pod in cluster.pods.values():
        volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
        sources = volumes["kubealign-credentials"]["projected"]["sources"]
        names = {source["secret"]["name"] for source in sources}
        generation = pod["metadata"]["labels"][CREDENTIALS_LABEL]
        assert names == {"two-ranks-credentials" + ("" if generation == "1" else f"-{generation}")}
        mounted |= names
    return mounted


def _renewals(cluster: Cluster) -> list[str]:
    return [event.message for event in cluster.events if event.reason == "CredentialsRenewed"]


def _finish_renewal(cluster: Cluster) -> None:
    """Let the nodes end the outdated pods, the driver first, and start the job again."""
    for _ in range(3):
        cluster.settle()
        cluster.finish_leaving()
    cluster.start()


def test_a_new_job_has_the_first_generation() -> None:
    cluster = _running()
    assert cluster.job["status"]["credentials"] == {
        "secretName": "two-ranks-credentials",
        "generation": 1,
        "issuedAt": "2026-03-01T12:00:00Z",
        "expiresAt": "2026-05-30T12:00:00Z",
    }
    assert _mounted(cluster) == {"two-ranks-credentials"}
    assert _renewals(cluster) == []


@pytest.mark.parametrize("days", [1, 90, 3650])
def test_a_running_job_is_renewed_after_two_thirds_of_the_lifetime(days: int) -> None:
    cluster = _running()
    cluster = Cluster(
        cluster.job | {"status": {}}, platform=replace(PLATFORM, credentials_lifetime_days=days)
    )
    cluster.start()
    seconds = cluster.rendered().requeue_after
    assert seconds == pytest.approx(days * _DAY * 2 / 3, abs=1)
    cluster.pass_time(seconds - 2)
    cluster.settle()
    assert _generation(cluster) == 1
    cluster.pass_time(2)
    plan = cluster.step()
    # Status and Secret come first; the pods stay until the Secret exists.
    assert plan.credentials is not None and plan.credentials.name == "two-ranks-credentials-2"
    assert plan.credentials.lifetime.total_seconds() == pytest.approx(days * _DAY, abs=2)
    assert (plan.delete, plan.create) == ((), ())
    assert (cluster.phase, _generation(cluster)) == ("Running", 2)
    assert cluster.message == "renewing credentials: waits for the Secret two-ranks-credentials-2"
    # The driver saves a checkpoint, for which it needs the others.
    plan = cluster.step()
    assert [(deletion.name, deletion.grace_seconds) for deletion in plan.delete] == [
        ("two-ranks-driver-0", None)
    ]
    assert (cluster.phase, cluster.message) == (
        "Starting",
        "renewing credentials: the driver saves a checkpoint",
    )
    cluster.finish_leaving()
    others = set(cluster.pods)
    plan = cluster.step()
    assert ({deletion.name for deletion in plan.delete}, plan.create) == (others, ())
    _finish_renewal(cluster)
    assert (cluster.phase, cluster.message) == ("Running", "")
    assert _mounted(cluster) == {"two-ranks-credentials-2"}
    assert _secrets(cluster) == ["two-ranks-credentials", "two-ranks-credentials-2"]
    assert cluster.made.count("two-ranks-prepare-0") == 1
    assert cluster.job["status"]["restarts"] == 0 and "attempts" not in cluster.job["status"]
    assert len(_renewals(cluster)) == 1 and "expire at" in _renewals(cluster)[0]


def test_a_resume_renews_once() -> None:
    cluster = _running()
    cluster.job["spec"]["suspend"] = True
    _finish_suspension(cluster)
    cluster.pass_time(4000 * _DAY)
    cluster.settle()
    assert (cluster.phase, _generation(cluster)) == ("Suspended", 1)
    cluster.job["spec"]["suspend"] = False
    cluster.start()
    assert (cluster.phase, _generation(cluster)) == ("Running", 2)
    assert _mounted(cluster) == {"two-ranks-credentials-2"}
    assert _renewals(cluster) == [
        "new certificates and passwords in the Secret two-ranks-credentials-2: the job is resumed"
    ]


def _finish_suspension(cluster: Cluster) -> None:
    for _ in range(3):
        cluster.settle()
        cluster.finish_leaving()
    cluster.settle()
    assert cluster.phase == "Suspended"


def test_a_suspension_that_is_taken_back_renews() -> None:
    cluster = _running()
    cluster.job["spec"]["suspend"] = True
    cluster.step()
    cluster.job["spec"]["suspend"] = False
    _finish_renewal(cluster)
    assert (cluster.phase, _generation(cluster)) == ("Running", 2)


def test_a_job_that_is_created_suspended_starts_with_the_first_generation() -> None:
    cluster = Cluster(two_ranks(suspend=True))
    _request(cluster, "a")
    cluster.settle()
    assert "credentials" not in cluster.job["status"]
    cluster.pass_time(400 * _DAY)
    cluster.job["spec"]["suspend"] = False
    cluster.start()
    assert (cluster.phase, _generation(cluster), _renewals(cluster)) == ("Running", 1, [])
    assert cluster.rendered().requeue_after == pytest.approx(60 * _DAY, abs=1)


def test_a_retry_renews() -> None:
    cluster = _running()
    cluster.end("two-ranks-trainer-0-0", 1, "ValueError: x")
    cluster.settle()
    assert cluster.phase == "Failed"
    cluster.job["metadata"]["annotations"] = {"kubealign.dev/retry": "a"}
    _finish_renewal(cluster)
    assert (cluster.phase, _generation(cluster)) == ("Running", 2)
    assert _mounted(cluster) == {"two-ranks-credentials-2"}
    assert len(_renewals(cluster)) == 1 and "the job is retried" in _renewals(cluster)[0]


def test_a_job_without_credentials_is_retried_without_a_renewal() -> None:
    cluster = Cluster(ppo(), dependencies={"sft": DependencyView("sft", "1", phase="Failed")})
    cluster.settle()
    cluster.job["metadata"]["annotations"] = {"kubealign.dev/retry": "a"}
    cluster.settle()
    assert "credentials" not in cluster.job["status"] and _renewals(cluster) == []


def test_each_value_of_the_annotation_renews_once() -> None:
    cluster = _running()
    for count, value in enumerate(("a", "b", "a"), start=2):
        _request(cluster, value)
        _finish_renewal(cluster)
        cluster.settle()
        assert (cluster.phase, _generation(cluster)) == ("Running", count)
        assert cluster.job["status"]["credentials"]["renewalRequest"] == value
    assert len(_renewals(cluster)) == 3
    assert cluster.job["status"]["restarts"] == 0


def test_a_suspended_job_is_revoked_at_once() -> None:
    cluster = _running()
    cluster.job["spec"]["suspend"] = True
    _finish_suspension(cluster)
    _request(cluster, "a")
    cluster.settle()
    assert (cluster.phase, _generation(cluster), len(_renewals(cluster))) == ("Suspended", 2, 1)
    assert _secrets(cluster) == ["two-ranks-credentials"]
    cluster.job["spec"]["suspend"] = False
    cluster.start()
    assert (cluster.phase, _generation(cluster)) == ("Running", 3)
    assert _mounted(cluster) == {"two-ranks-credentials-3"}


def test_pods_of_an_earlier_release_have_the_first_generation() -> None:
    cluster = _running()
    for pod in cluster.pods.values():
        del pod["metadata"]["labels"][CREDENTIALS_LABEL]
    del cluster.job["status"]["credentials"]
    cluster.pass_time(200 * _DAY)
    plan = cluster.settle()
    assert (plan.delete, plan.create, plan.credentials) == ((), (), None)
    assert cluster.job["status"]["credentials"] == {"secretName": "two-ranks-credentials", "generation": 1}
    assert cluster.phase == "Running"
    _request(cluster, "a")
    _finish_renewal(cluster)
    assert _mounted(cluster) == {"two-ranks-credentials-2"}


def test_a_job_that_waits_in_a_queue_for_longer_than_the_lifetime_is_renewed() -> None:
    cluster = Cluster(two_ranks())
    cluster.settle()
    for name in cluster.pods:
        cluster.unschedulable(name, "", reason="SchedulingGated")
    cluster.pass_time(91 * _DAY)
    cluster.settle()
    assert _generation(cluster) == 2
    cluster.start()
    assert cluster.phase == "Running"
    assert _mounted(cluster) == {"two-ranks-credentials-2"}
    assert cluster.job["status"]["restarts"] == 0


def test_a_renewal_waits_for_a_pod_whose_node_is_silent() -> None:
    cluster = _running()
    _request(cluster, "a")
    cluster.step()
    for _ in range(3):
        cluster.settle()
        stays = cluster.pods.pop("two-ranks-trainer-0-0")
        cluster.finish_leaving()
        cluster.pods["two-ranks-trainer-0-0"] = stays
    cluster.pass_time(200)
    plan = cluster.settle()
    assert (plan.delete, plan.create) == ((), ())
    assert set(cluster.pods) == {"two-ranks-trainer-0-0"}
    assert cluster.message.startswith("renewing credentials: ") and "node-1" in cluster.message
    cluster.vanish("two-ranks-trainer-0-0")
    cluster.start()
    assert (cluster.phase, _generation(cluster)) == ("Running", 2)


def test_a_renewal_does_not_wait_for_an_ended_pod_that_a_finalizer_keeps() -> None:
    cluster = _running()
    cluster.pods["two-ranks-trainer-0-0"]["metadata"]["finalizers"] = [_FINALIZER]
    _request(cluster, "a")
    cluster.step()
    _finish_renewal(cluster)
    assert (cluster.phase, _generation(cluster)) == ("Running", 2)
    assert {"two-ranks-trainer-0-0", "two-ranks-trainer-0-1"} <= set(cluster.pods)


@pytest.mark.parametrize("trigger", ["request", "time", "resume"])
@pytest.mark.parametrize("writes", range(4))
def test_an_operator_may_end_between_any_two_writes(trigger: str, writes: int) -> None:
    """Check that every reconcile may be cut off after `writes` writes and the job still gets generation 2."""
    cluster = CrashingCluster(two_ranks(lifecycle={"maxRestarts": 0}))
    cluster.start()
    if trigger == "request":
        _request(cluster, "a")
    elif trigger == "time":
        cluster.pass_time(61 * _DAY)
    else:
        cluster.job["spec"]["suspend"] = True
        _finish_suspension(cluster)
        cluster.job["spec"]["suspend"] = False
    for _ in range(8):
        with suppress(OperatorCrash):
            cluster.step_until(writes)
        cluster.step()
        mounted = _mounted(cluster)
        assert len(mounted) <= 1, f"pods of two generations run: {mounted}"
        cluster.finish_leaving()
        cluster.serve()
    cluster.start()
    assert (cluster.phase, _generation(cluster)) == ("Running", 2)
    assert _secrets(cluster) == ["two-ranks-credentials", "two-ranks-credentials-2"]
    assert cluster.job["status"]["restarts"] == 0


def test_a_generation_whose_secret_was_created_is_found_again() -> None:
    """Check a status that is older than the Secret: the answer to its patch was lost."""
    cluster = _running()
    before = dict(cluster.job["status"])
    _request(cluster, "a")
    cluster.step()
    assert ("Secret", "two-ranks-credentials-2") in cluster.objects
    cluster.job["status"] = before
    cluster.pass_time(60)
    plan = cluster.step()
    assert _generation(cluster) == 2 and plan.credentials is None
    _finish_renewal(cluster)
    assert (cluster.phase, _generation(cluster)) == ("Running", 2)


def test_a_secret_that_is_created_late_does_not_outlive_the_recorded_expiry() -> None:
    cluster = _running()
    _request(cluster, "a")
    # The operator ends after the status; the next one starts a month later.
    cluster.job["status"] = cluster.rendered().status
    cluster.pass_time(30 * _DAY)
    plan = cluster.step()
    assert plan.credentials is not None and plan.credentials.name == "two-ranks-credentials-2"
    assert plan.credentials.lifetime.total_seconds() == pytest.approx(60 * _DAY, abs=1)


def test_pods_run_on_while_the_secret_is_refused() -> None:
    cluster = _running()
    before = set(cluster.pods)
    _request(cluster, "a")
    cluster.job["status"] = cluster.rendered().status
    cluster.refusals["two-ranks-credentials-2"] = "exceeded quota: secrets"
    plan = cluster.rendered()
    assert (plan.delete, plan.create) == ((), ())
    assert plan.status["phase"] == "Running"
    assert plan.status["message"] == "two-ranks-credentials-2 was refused: exceeded quota: secrets"
    assert set(cluster.pods) == before
    cluster.refusals.clear()
    _finish_renewal(cluster)
    assert (cluster.phase, _generation(cluster)) == ("Running", 2)


def test_a_secret_that_is_deleted_while_its_pods_run_is_not_replaced_under_its_name() -> None:
    cluster = _running()
    cluster.objects.discard(("Secret", "two-ranks-credentials"))
    _finish_renewal(cluster)
    assert (cluster.phase, _generation(cluster)) == ("Running", 2)
    assert "does not exist any more" in _renewals(cluster)[0]


def test_a_lost_status_does_not_go_back_to_an_earlier_generation() -> None:
    cluster = _running()
    _request(cluster, "a")
    _finish_renewal(cluster)
    del cluster.job["status"]["credentials"]
    _finish_renewal(cluster)
    assert (cluster.phase, _generation(cluster)) == ("Running", 3)


def test_another_lifetime_does_not_renew_what_runs() -> None:
    cluster = _running()
    cluster.platform = replace(PLATFORM, credentials_lifetime_days=3650)
    cluster.pass_time(59 * _DAY)
    cluster.settle()
    assert _generation(cluster) == 1


def test_a_job_that_ends_during_a_renewal_has_succeeded() -> None:
    cluster = _running(sft())
    _request(cluster, "a")
    cluster.step()
    cluster.step()
    cluster.end(cluster.name("driver"), 0)
    cluster.settle()
    assert cluster.phase == "Succeeded"
