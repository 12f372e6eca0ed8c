"""Jobs that start from the checkpoint of another job or of a run in a volume."""

import pytest

from kubealign_operator.kube_views.observed_job import DependencyView, VolumePath
from support.rendering.cluster import Cluster
from support.rendering.jobs import Json, sft

_PARENT = DependencyView("old", "11111111-a", phase="Failed", volume=VolumePath("others", "runs"))


def _job(source: Json) -> Json:
    volume = {"claimName": "runs", "path": "team"}
    return sft(checkpoint={"volume": volume, "from": source})


def _mounts(cluster: Cluster, process: str) -> dict[str, bool]:
    container = cluster.pods[cluster.name(process)]["spec"]["containers"][0]
    return {mount["mountPath"]: mount.get("readOnly", False) for mount in container["volumeMounts"]}


@pytest.mark.parametrize("phase", ["Failed", "Succeeded", "Suspended"])
def test_a_job_starts_from_the_run_of_another_job(phase: str) -> None:
    running = DependencyView("old", "11111111-a", phase="Running", volume=_PARENT.volume)
    cluster = Cluster(_job({"job": {"name": "old"}}), dependencies={"old": running})
    cluster.settle()
    assert (cluster.phase, cluster.pods) == ("Pending", {})
    assert cluster.message == (
        "waits for job old, whose checkpoint it needs and which is Running: suspend that job, or wait until "
        "it ends"
    )
    cluster.dependencies["old"] = DependencyView("old", "11111111-a", phase=phase, volume=_PARENT.volume)
    cluster.settle()
    # The parent may be deleted once the job has started.
    cluster.dependencies["old"] = None
    cluster.start()
    assert cluster.phase == "Running"
    source = {"claimName": "others", "path": "runs/old-11111111"}
    assert cluster.job["status"]["checkpointSource"] == source
    for process in ("prepare", "trainer-0", "driver"):
        assert cluster.settings(process)["parent_run"] == "/volumes/others/runs/old-11111111"
        assert _mounts(cluster, process)["/volumes/others"] is True


def test_a_missing_parent_is_waited_for() -> None:
    cluster = Cluster(_job({"job": {"name": "old"}}), dependencies={"old": None})
    cluster.settle()
    assert cluster.message == (
        "waits for job old, whose checkpoint it needs and which does not exist in namespace team"
    )


def test_a_job_starts_from_a_run_in_a_volume() -> None:
    cluster = Cluster(_job({"volume": {"claimName": "others", "path": "runs/old-22222222"}, "step": 7}))
    cluster.start()
    assert cluster.phase == "Running"
    assert cluster.settings("driver")["parent_run"] == "/volumes/others/runs/old-22222222"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"path": "/runs/old"}, "spec.checkpoint.from.path: is a folder on one machine: name a job, or a"),
        ({"job": {"name": "sft"}}, "spec.checkpoint.from.job.name: is the job itself"),
    ],
)
def test_a_source_that_a_cluster_cannot_use_is_refused(source: Json, message: str) -> None:
    cluster = Cluster(_job(source))
    cluster.settle()
    assert cluster.phase == "Pending"
    assert message in cluster.message


def test_a_job_without_a_source_has_no_new_setting() -> None:
    cluster = Cluster(sft())
    cluster.start()
    assert "parent_run" not in cluster.settings("driver")
    assert "checkpointSource" not in cluster.job["status"]
