"""Errors that the schema cannot express, with field and remedy."""

import json
from typing import Any

import pytest

from kubealign.kube.documents import MAX_DEPTH
from support.deep_documents import nested
from support.rendering.cluster import Cluster
from support.rendering.jobs import ppo, sft

Json = dict[str, Any]


def _named(name: str) -> Json:
    job = sft()
    job["metadata"]["name"] = name
    return job


_DATA: Json = {"volume": {"claimName": "data", "path": "t.jsonl"}}
_CASES: dict[str, tuple[Json, str]] = {
    "no volume": (
        sft(checkpoint={"everySteps": 5}),
        "spec.checkpoint.volume: is required in a cluster: name a PersistentVolumeClaim that every pod "
        "of the job can write",
    ),
    "relative model": (
        sft(policy={"model": {"path": "models/base"}}),
        "spec.policy.model.path: is relative to a file on one machine, and there is none in a cluster: name "
        'an absolute path in the image, or a volume (it holds "models/base")',
    ),
    "relative data": (
        sft(data={"demonstrations": {"source": {"path": "train.jsonl"}}}),
        "spec.data.demonstrations.source.path: is relative to a file on one machine",
    ),
    "relative file of a list": (
        sft(data={"demonstrations": {"source": {"paths": ["/data/a.jsonl", "shards/*.jsonl"]}}}),
        "spec.data.demonstrations.source.paths[1]: is relative to a file on one machine, and there is none "
        'in a cluster: name an absolute path in the image, or a volume (it holds "shards/*.jsonl")',
    ),
    "folder as a data set": (
        sft(data={"demonstrations": {"source": {"huggingFace": {"name": "./data"}}}}),
        "spec.data.demonstrations.source.huggingFace.name: is relative",
    ),
    "relative function": (
        ppo(
            policy={"model": {"path": "/models/base"}},
            rewards=[
                {"name": "r", "model": {"path": "/models/rm"}},
                {"name": "f", "function": {"file": {"path": "reward.py"}}},
            ],
        ),
        "spec.rewards[1].function.file.path: is relative",
    ),
    "itself": (
        sft(policy={"model": {"job": {"name": "sft"}}}),
        'spec.policy.model.job.name: is the job itself: name another job (it holds "sft")',
    ),
    "a digit": (
        _named("3b-sft"),
        "metadata.name: must be lower-case letters, digits and hyphens, with a letter first",
    ),
    "no spec": ({**sft(), "spec": {}}, "spec.algorithm: is required"),
    "no length": (sft(maxSteps=None), "spec.maxSteps: the job has no end"),
    "an unknown field": (sft(surprise=1), "spec.surprise: is no field here"),
    "a wrong type": (sft(maxSteps="5"), "spec.maxSteps: must be"),
}


@pytest.mark.parametrize("case", _CASES)
def test_the_error_is_reported_and_nothing_is_created(case: str) -> None:
    job, message = _CASES[case]
    cluster = Cluster(job)
    cluster.settle()
    assert cluster.phase == "Pending"
    assert message in cluster.message
    accepted = cluster.condition("Accepted")
    assert (accepted["status"], accepted["reason"]) == ("False", "Invalid")
    assert cluster.pods == {} and cluster.objects == set()
    assert [event.reason for event in cluster.events] == ["Pending", "Invalid"]


def test_an_absolute_path_refers_to_the_image() -> None:
    cluster = Cluster(sft(policy={"model": {"path": "/models/base"}}))
    cluster.settle()
    assert cluster.phase == "Starting"


def test_a_running_job_is_left_alone_by_a_stricter_operator() -> None:
    cluster = Cluster(sft())
    cluster.start()
    cluster.job["spec"]["surprise"] = 1
    rendered = cluster.step()
    assert cluster.phase == "Running"
    assert "spec.surprise" in cluster.message
    assert (rendered.create, rendered.delete, rendered.stop) == ((), (), ())
    del cluster.job["spec"]["surprise"]
    cluster.settle()
    assert cluster.message == ""


@pytest.mark.parametrize(("exit_code", "phase"), [(0, "Succeeded"), (78, "Failed")])
def test_the_end_of_a_job_is_seen_by_a_stricter_operator(exit_code: int, phase: str) -> None:
    cluster = Cluster(sft())
    cluster.start()
    cluster.job["spec"]["surprise"] = 1
    cluster.end(cluster.name("driver"), exit_code, "the data has no prompts")
    cluster.settle()
    assert cluster.phase == phase
    if phase == "Succeeded":
        uid = cluster.job["metadata"]["uid"][:8]
        assert cluster.job["status"]["result"] == {"claimName": "runs", "path": f"team/sft-{uid}/result"}
    else:
        assert "the data has no prompts" in cluster.message
    cluster.finish_leaving()
    cluster.settle()
    assert cluster.phase == phase


def test_unknown_metadata_of_kubernetes_is_ignored() -> None:
    job = sft()
    job["metadata"] |= {"aFieldOfTomorrow": {"x": 1}, "managedFields": [{"manager": "kubectl"}]}
    cluster = Cluster(job)
    cluster.settle()
    assert cluster.phase == "Starting"


@pytest.mark.parametrize("has_started", [False, True])
def test_an_unreadable_job_is_invalid_and_keeps_its_pods(has_started: bool) -> None:
    cluster = Cluster(sft())
    if has_started:
        cluster.start()
    phase, pods = ("Running" if has_started else "Pending"), set(cluster.pods)
    cluster.unreadable = "spec.podTemplate is nested too deeply"
    cluster.settle()
    assert (cluster.phase, set(cluster.pods)) == (phase, pods)
    assert cluster.message == "spec.podTemplate is nested too deeply"
    assert cluster.condition("Accepted")["reason"] == "Invalid"


def test_a_job_at_the_limit_of_nesting_is_planned() -> None:
    affinity = {"nodeAffinity": json.loads(nested(MAX_DEPTH - 5))}
    cluster = Cluster(sft(podTemplate={"spec": {"affinity": affinity}}))
    cluster.settle()
    assert cluster.phase == "Starting"
    assert cluster.pods["sft-prepare-0"]["spec"]["affinity"] == affinity
