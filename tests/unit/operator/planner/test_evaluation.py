"""Planning of an evaluation, which has rollout workers and scorers and no trainer."""

from support.rendering.cluster import Cluster
from support.rendering.jobs import Json, alignment_job


def evaluate() -> Json:
    models = {"volume": {"claimName": "models", "path": "base"}}
    late = {"volume": {"claimName": "late", "path": "step-20"}}
    prompts = {"source": {"volume": {"claimName": "data", "path": "held.jsonl"}}}
    spec = {
        "algorithm": {"evaluate": {"checkpoints": [{"step": 20, "model": late}]}},
        "policy": {"model": models},
        "validation": {"data": {"prompts": prompts}},
        "rewards": [{"name": "exact", "function": {"module": "package.module:score"}}],
        "rollout": {"replicas": 2},
        "checkpoint": {"volume": {"claimName": "runs", "path": "team"}},
    }
    return alignment_job("curve", spec)


def test_the_lifecycle_needs_no_trainer() -> None:
    cluster = Cluster(evaluate())
    cluster.start()
    roles = {name.removeprefix("curve-").split("-")[0] for name in cluster.made}
    assert roles == {"prepare", "rollout", "reward", "driver", "nats"}
    worker = next(pod for name, pod in cluster.pods.items() if "rollout" in name)
    claims = {
        volume["persistentVolumeClaim"]["claimName"]
        for volume in worker["spec"]["volumes"]
        if "persistentVolumeClaim" in volume
    }
    assert {"models", "late"} <= claims
    driver = next(name for name in cluster.pods if "driver" in name)
    cluster.end(driver, 0)
    cluster.settle()
    assert cluster.job["status"]["phase"] == "Succeeded"
