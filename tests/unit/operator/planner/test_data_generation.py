"""Planning of a data generation job, which has no trainer."""

from support.rendering.cluster import Cluster
from support.rendering.jobs import Json, alignment_job


def generate() -> Json:
    volume = {"volume": {"claimName": "models", "path": "base"}}
    spec = {
        "maxSteps": 10,
        "algorithm": {"generate": {}},
        "policy": {"model": volume},
        "data": {"prompts": {"source": {"volume": {"claimName": "data", "path": "prompts.jsonl"}}}},
        "rollout": {"replicas": 2},
        "checkpoint": {"volume": {"claimName": "runs", "path": "team"}},
    }
    return alignment_job("drafts", spec)


def test_the_lifecycle_needs_no_trainer() -> None:
    cluster = Cluster(generate())
    cluster.start()
    created = {name.removeprefix("drafts-") for name in cluster.made}
    roles = {name.split("-")[0] for name in created}
    assert {"prepare", "rollout", "driver", "nats"} == roles, created
    assert cluster.job["status"]["phase"] == "Running"
    driver = next(name for name in cluster.pods if "driver" in name)
    cluster.end(driver, 0)
    cluster.settle()
    status = cluster.job["status"]
    assert status["phase"] == "Succeeded"
    assert status["result"] == {"claimName": "runs", "path": status["result"]["path"]}
    assert status["result"]["path"].endswith("/result")
