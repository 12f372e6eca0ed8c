"""AlignmentJobs as returned by the API."""

from collections.abc import Mapping
from typing import Any

from kubealign_operator.manifests.context import Platform

Json = dict[str, Any]

PLATFORM = Platform(image="kubealign/services:1", redis_host="kubealign-redis.kubealign.svc")
QUEUE = {"kueue.x-k8s.io/queue-name": "align"}
UID = "6f1f7d0e-2b7c-4f6e-9a51-3d2b1c0a9e88"


def _volume(claim_name: str, path: str) -> Json:
    return {"volume": {"claimName": claim_name, "path": path}}


def alignment_job(
    name: str,
    spec: Json,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
) -> Json:
    """Return a job as the API returns it, without a status."""
    metadata: Json = {"name": name, "namespace": "team", "uid": UID, "generation": 1, "resourceVersion": "7"}
    if labels:
        metadata["labels"] = dict(labels)
    if annotations:
        metadata["annotations"] = dict(annotations)
    return {
        "apiVersion": "kubealign.dev/v1alpha1",
        "kind": "AlignmentJob",
        "metadata": metadata,
        "spec": spec,
    }


def sft(**changes: Any) -> Json:
    """Return a job with preparation, trainer and driver."""
    spec = {
        "maxSteps": 10,
        "algorithm": {"sft": {"rowsPerStep": 8}},
        "policy": {"model": _volume("models", "base")},
        "data": {"demonstrations": {"source": _volume("data", "train.jsonl")}},
        "checkpoint": {"volume": {"claimName": "runs", "path": "team"}},
    }
    return alignment_job("sft", spec | changes)


def two_ranks(**changes: Any) -> Json:
    """Return a job whose trainer has two ranks."""
    job = sft(trainer={"ranks": 2}, **changes)
    job["metadata"]["name"] = "two-ranks"
    return job


def shared_workers(**changes: Any) -> Json:
    """Return a job with two rollout workers of two pods each."""
    spec = {
        "maxSteps": 10,
        "algorithm": {"rloo": {"promptsPerStep": 8, "kl": {"fixed": {"coefficient": 0}}}},
        "policy": {"model": _volume("models", "base")},
        "data": {"prompts": {"source": _volume("data", "prompts.jsonl")}},
        "rewards": [{"name": "exact", "model": _volume("models", "rm")}],
        "rollout": {"replicas": 2, "engine": {"torch": {"tensorParallel": 2}}},
        "checkpoint": {"volume": {"claimName": "runs", "path": "team"}},
    }
    return alignment_job("shared", spec | changes)


def scorer_replicas(**changes: Any) -> Json:
    """Return a job with two processes each of the reference and of a reward."""
    spec = {
        "maxSteps": 10,
        "algorithm": {"rloo": {"promptsPerStep": 8, "kl": {"fixed": {"coefficient": 0.05}}}},
        "policy": {"model": _volume("models", "base")},
        "data": {"prompts": {"source": _volume("data", "prompts.jsonl")}},
        "reference": {"replicas": 2},
        "rewards": [{"name": "exact", "model": _volume("models", "rm"), "replicas": 2}],
        "checkpoint": {"volume": {"claimName": "runs", "path": "team"}},
    }
    return alignment_job("scored", spec | changes)


def alike_scorers(count: int) -> Json:
    """Return the job of `scorer_replicas` with several rewards, r0, r1 and so on, whose pods are alike."""
    rewards = [
        {"name": f"r{index}", "function": {"module": "package.module:score"}} for index in range(count)
    ]
    return scorer_replicas(rewards=rewards)


def environment_workers(replicas: int = 2, **changes: Any) -> Json:
    """Return a job with environment workers, whose environment is in a ConfigMap and needs the network."""
    function = {"configMap": {"name": "games", "key": "game.py", "function": "Game"}}
    spec = {
        "maxSteps": 10,
        "algorithm": {"rloo": {"promptsPerStep": 8, "kl": {"fixed": {"coefficient": 0}}}},
        "policy": {"model": _volume("models", "base")},
        "data": {"prompts": {"source": _volume("data", "prompts.jsonl")}},
        "rewards": [{"name": "game", "episode": {}}],
        "rollout": {
            "environmentReplicas": replicas,
            "workflow": {"environment": {"function": function}},
            "egress": [{"namespace": {"name": "games"}}],
        },
        "checkpoint": {"volume": {"claimName": "runs", "path": "team"}},
    }
    return alignment_job("played", spec | changes)


def sharded_scorers(**changes: Any) -> Json:
    """Return the job of `scorer_replicas` with two ranks in each replica of the reference, and one reward of
    three ranks."""
    rewards = [{"name": "exact", "model": _volume("models", "rm"), "ranks": 3}]
    return scorer_replicas(reference={"replicas": 2, "ranks": 2}, rewards=rewards, **changes)


def with_trainer(**changes: Any) -> Json:
    """Return a job with rollout workers in the trainer's two ranks, and a tool from a ConfigMap."""
    tool = {
        "name": "add",
        "function": {"configMap": {"name": "tools", "key": "add.py", "function": "add"}},
    }
    spec = {
        "maxSteps": 10,
        "algorithm": {
            "rloo": {"promptsPerStep": 8, "kl": {"placement": "Reward", "fixed": {"coefficient": 0}}}
        },
        "policy": {"model": _volume("models", "base")},
        "data": {"prompts": {"source": _volume("data", "prompts.jsonl")}},
        "trainer": {"ranks": 2},
        "rewards": [{"name": "exact", "function": {"module": "package.module:score"}}],
        "rollout": {"placement": "WithTrainer", "replicas": 2, "workflow": {"tools": {"tools": [tool]}}},
        "checkpoint": {"volume": {"claimName": "runs", "path": "team"}},
    }
    return alignment_job("with-trainer", spec | changes)


def ppo(**changes: Any) -> Json:
    """Return a job with every role, two rewards, a ConfigMap tool, a queue, templates and a dependency."""
    spec = {
        "maxSteps": 10,
        "algorithm": {
            "ppo": {
                "promptsPerStep": 8,
                "kl": {"placement": "Reward", "estimator": "K1", "fixed": {"coefficient": 0.05}},
            }
        },
        "policy": {"model": {"job": {"name": "sft"}}},
        "data": {"prompts": {"source": _volume("data", "prompts.jsonl")}},
        "trainer": {
            "ranks": 2,
            "podTemplate": {
                "spec": {
                    "containers": [
                        {
                            "name": "main",
                            "resources": {"limits": {"nvidia.com/gpu": 1, "memory": "64Gi", "cpu": "8"}},
                            "env": [{"name": "NCCL_DEBUG", "value": "WARN"}],
                        }
                    ],
                    "topologySpreadConstraints": [
                        {
                            "maxSkew": 1,
                            "topologyKey": "kubernetes.io/hostname",
                            "whenUnsatisfiable": "ScheduleAnyway",
                        }
                    ],
                }
            },
        },
        "rewards": [
            {"name": "helpful", "model": _volume("models", "rm")},
            {
                "name": "format",
                "function": {"configMap": {"name": "rewards", "key": "format.py", "function": "score"}},
            },
        ],
        "rollout": {"replicas": 3, "minReplicas": 2},
        "checkpoint": {"volume": {"claimName": "runs", "path": "team"}},
        "lifecycle": {
            "activeDeadlineSeconds": 3600,
            "gracePeriodSeconds": 45,
            "ttlSecondsAfterFinished": 600,
        },
        "podTemplate": {
            "metadata": {"labels": {"team": "blue"}},
            "spec": {
                "priorityClassName": "research",
                "nodeSelector": {"pool": "gpu"},
                "tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}],
                "imagePullSecrets": [{"name": "registry"}],
            },
        },
    }
    return alignment_job("ppo", spec | changes, {"cost-centre": "42"})
