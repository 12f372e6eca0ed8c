"""Jobs whose pods are spread over two nodes, in an order of preference and not by force."""

from typing import Any

from kubealign.labels import ROLE_LABEL

from .behaviour import Json
from .paced_jobs import paced_job
from .tenant import CLAIM

_HOST = "kubernetes.io/hostname"
#: Taint of a node that only the pods of these jobs use, so that faults of the node hit nothing else.
JOBS_ONLY = "kubealign.dev/jobs-only"
#: Time after which Kubernetes deletes the pods of a node that does not answer; its default is five minutes.
_TOLERATION_SECONDS = 2


def spread_job(name: str, steps: int, node: str, **lifecycle: Any) -> Json:
    """Return a paced job with two rollout workers, whose driver and bus prefer `node`.

    The trainer never runs on `node`, and the rollout workers prefer different nodes. Each batch is recorded.
    Fields in `lifecycle` replace the defaults."""
    on_node = {"key": _HOST, "operator": "In", "values": [node]}
    preferred = _preferred(100, preference={"matchExpressions": [on_node]})
    apart = {"topologyKey": _HOST, "labelSelector": {"matchLabels": {ROLE_LABEL: "rollout"}}}
    elsewhere = {**on_node, "operator": "NotIn"}
    required = {
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{"matchExpressions": [elsewhere]}]
        }
    }
    job = paced_job(
        name,
        steps,
        checkpoint={
            "everySteps": 3,
            "recordBatches": True,
            "volume": {"claimName": CLAIM, "path": "runs"},
        },
        lifecycle={"gracePeriodSeconds": 10, **lifecycle},
    )
    spec = job["spec"]
    spec["podTemplate"] = {
        "spec": {
            **spec["podTemplate"]["spec"],
            "tolerations": [
                {"key": JOBS_ONLY, "operator": "Exists"},
                *(_tolerates(f"node.kubernetes.io/{state}") for state in ("unreachable", "not-ready")),
            ],
            "affinity": {"nodeAffinity": preferred},
        }
    }
    spec["trainer"]["podTemplate"] = {"spec": {"affinity": {"nodeAffinity": required}}}
    rollout_affinity = {
        "nodeAffinity": _preferred(1, preference={"matchExpressions": [on_node]}),
        "podAntiAffinity": _preferred(100, podAffinityTerm=apart),
    }
    spec["rollout"] |= {"replicas": 2, "podTemplate": {"spec": {"affinity": rollout_affinity}}}
    return job


def _preferred(weight: int, **term: Any) -> Json:
    return {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": weight, **term}]}


def _tolerates(key: str) -> Json:
    return {
        "key": key,
        "operator": "Exists",
        "effect": "NoExecute",
        "tolerationSeconds": _TOLERATION_SECONDS,
    }
