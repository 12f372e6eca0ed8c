"""The short-lived pod that a result is fetched through. Pure.

It is made like the job's own pods, which could read the volume, and meets the restricted Pod Security
Standard. It has no label by which the operator or a Service would take it for one of the job's.
"""

import os
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any, Self

from kubealign.client.cluster_processes import process_of
from kubealign.client.errors import NotPossible
from kubealign.client.records import JobRecord
from kubealign.labels import APP, KUBEALIGN, MAIN
from kubealign.pod import VOLUMES
from kubealign.spec.job import API_VERSION, GROUP, KIND
from kubealign.spec.status import Result

Json = dict[str, Any]

RESULT_LABEL = f"{GROUP}/result-of"
_IMAGE = "KUBEALIGN_RESULT_IMAGE"
_DEADLINE_SECONDS = 24 * 3600
_COPIED = ("imagePullSecrets", "nodeSelector", "tolerations", "runtimeClassName")
_RESOURCES = {
    "requests": {"cpu": "100m", "memory": "64Mi"},
    "limits": {"cpu": "1", "memory": "256Mi"},
}


@dataclass(frozen=True)
class ResultPod:
    """Where no pod of the job is left to copy from. `image`: any with Python 3; None: there is none."""

    image: str | None = None
    python: str = "python"
    user: int = 65532

    @classmethod
    def from_environment(cls) -> Self:
        """KUBEALIGN_RESULT_IMAGE names the image."""
        return cls(os.environ.get(_IMAGE) or None)


def manifest(job: JobRecord, result: Result, pods: Sequence[Mapping[str, Any]], fallback: ResultPod) -> Json:
    """Raises NotPossible where nothing says which image to take."""
    model = _model(pods)
    spec = _copied(model) if model is not None else _made(job, fallback)
    main = spec["containers"][0]
    mount = {"name": "result", "mountPath": f"{VOLUMES}/{result.claim_name}", "readOnly": True}
    main |= {
        "name": MAIN,
        "command": [main["command"][0], "-c", source(), "hold"],
        "resources": _RESOURCES,
        "volumeMounts": [mount],
        "env": [{"name": "PYTHONDONTWRITEBYTECODE", "value": "1"}],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
    }
    claim = {"claimName": result.claim_name}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{job.name}-result-{uuid.uuid4().hex[:6]}",
            "namespace": job.namespace,
            "labels": {APP: KUBEALIGN, RESULT_LABEL: job.uid},
            # Should nobody delete it, it goes with the job.
            "ownerReferences": [
                {
                    "apiVersion": API_VERSION,
                    "kind": KIND,
                    "name": job.name,
                    "uid": job.uid,
                    "controller": False,
                    "blockOwnerDeletion": False,
                }
            ],
        },
        "spec": {
            **spec,
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": 1,
            "activeDeadlineSeconds": _DEADLINE_SECONDS,
            "volumes": [{"name": "result", "persistentVolumeClaim": claim}],
        },
    }


def sends(pod: Mapping[str, Any], result: Result) -> list[str]:
    """The command that writes the result's folder to stdout, for a pod made by `manifest`."""
    python = pod["spec"]["containers"][0]["command"][0]
    folder = f"{VOLUMES}/{result.claim_name}/{result.path.lstrip('/')}"
    return [python, "-c", source(), "send", folder]


def source() -> str:
    """Of result_sender: the image may hold another kubealign, or none."""
    return resources.files("kubealign.client").joinpath("result_sender.py").read_text()


def _model(pods: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The driver's pod, which has the least to ask of a node, else any that has the image."""
    known = [pod for pod in pods if process_of(pod)]
    return next((pod for pod in known if process_of(pod) == "driver"), known[0] if known else None)


def _copied(pod: Mapping[str, Any]) -> Json:
    spec = pod["spec"]
    main = next(held for held in spec["containers"] if held["name"] == MAIN)
    kept = {name: main[name] for name in ("image", "imagePullPolicy") if name in main}
    return {
        **{name: spec[name] for name in _COPIED if spec.get(name)},
        "securityContext": spec.get("securityContext") or _security(ResultPod.user),
        "containers": [{**kept, "command": list(main["command"])[:1]}],
    }


def _made(job: JobRecord, fallback: ResultPod) -> Json:
    if fallback.image is None:
        raise NotPossible(
            f"no pod of job {job.ref} is left that says which image to read its volume with: set {_IMAGE} to "
            "one with Python 3, such as the image of the jobs' pods"
        )
    return {
        "securityContext": _security(fallback.user),
        "containers": [{"image": fallback.image, "command": [fallback.python]}],
    }


def _security(user: int) -> Json:
    return {
        "runAsNonRoot": True,
        "runAsUser": user,
        "runAsGroup": user,
        "fsGroup": user,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }
