"""Short-lived pod that reads a result from its volume. Pure.

The pod is built like the job's own pods, which could mount the volume, and satisfies the restricted Pod
Security Standard. It has no label by which the operator or a Service would treat it as a pod of the job.
"""

import os
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any, Self

from kubealign.client.backends.cluster.processes import process_name
from kubealign.client.errors import NotPossible
from kubealign.client.records import JobRecord
from kubealign.labels import APP, KUBEALIGN, MAIN_CONTAINER
from kubealign.pod_contract import VOLUMES_FOLDER
from kubealign.spec.job import API_VERSION, GROUP, KIND
from kubealign.spec.status import ResultLocation

Json = dict[str, Any]

RESULT_LABEL = f"{GROUP}/result-of"
_IMAGE_VARIABLE = "KUBEALIGN_RESULT_IMAGE"
_USER_VARIABLE = "KUBEALIGN_RESULT_USER"
_USER_OF_THE_NAMESPACE = "namespace"
_LARGEST_USER = 2**31 - 1
_DEADLINE_SECONDS = 24 * 3600
_COPIED_FIELDS = ("imagePullSecrets", "nodeSelector", "tolerations", "runtimeClassName")
_RESOURCES = {
    "requests": {"cpu": "100m", "memory": "64Mi"},
    "limits": {"cpu": "1", "memory": "256Mi"},
}


@dataclass(frozen=True)
class ResultPodSettings:
    """Settings of the pod when no pod of the job is left to copy from.

    `image`: any image with Python 3; None: that of the job's status.
    `user`: user and group that may read the volume; None: the namespace assigns them, as on OpenShift.
    """

    image: str | None = None
    python: str = "python"
    user: int | None = 65532

    @classmethod
    def from_environment(cls) -> Self:
        """Read the image from KUBEALIGN_RESULT_IMAGE, the user from KUBEALIGN_RESULT_USER.

        Raises NotPossible if the user is neither a number above 0 nor `namespace`.
        """
        return cls(os.environ.get(_IMAGE_VARIABLE) or None, user=_user(os.environ.get(_USER_VARIABLE, "")))


def _user(text: str) -> int | None:
    if not text:
        return ResultPodSettings.user
    if text == _USER_OF_THE_NAMESPACE:
        return None
    if not text.isdecimal() or not 0 < int(text) <= _LARGEST_USER:
        raise NotPossible(
            f"{_USER_VARIABLE} is {text!r}; allowed are a user ID from 1 to {_LARGEST_USER}, and "
            f"`{_USER_OF_THE_NAMESPACE}`, which leaves it to the namespace"
        )
    return int(text)


def pod_manifest(
    job: JobRecord, result: ResultLocation, pods: Sequence[Mapping[str, Any]], fallback: ResultPodSettings
) -> Json:
    """Return the pod's manifest. Raises NotPossible if no image is known."""
    template = _template_pod(pods)
    spec = _spec_from_pod(template) if template is not None else _spec_from_fallback(job, fallback)
    main = spec["containers"][0]
    mount = {"name": "result", "mountPath": f"{VOLUMES_FOLDER}/{result.claim_name}", "readOnly": True}
    main |= {
        "name": MAIN_CONTAINER,
        "command": [main["command"][0], "-c", sender_source(), "hold"],
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
            # A pod that was not deleted is garbage-collected with the job.
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


def send_command(pod: Mapping[str, Any], result: ResultLocation) -> list[str]:
    """Return the command that writes the result folder to stdout, for a pod built by `pod_manifest`."""
    python = pod["spec"]["containers"][0]["command"][0]
    folder = f"{VOLUMES_FOLDER}/{result.claim_name}/{result.path.lstrip('/')}"
    return [python, "-c", sender_source(), "send", folder]


def sender_source() -> str:
    """Return the source of the sender: the image may contain another version of kubealign, or none."""
    return resources.files("kubealign.client.results").joinpath("reader_pod_program.py").read_text()


def _template_pod(pods: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Return the driver's pod, which has the smallest node requirements, else any pod with the image."""
    job_pods = [pod for pod in pods if process_name(pod)]
    return next((pod for pod in job_pods if process_name(pod) == "driver"), job_pods[0] if job_pods else None)


def _spec_from_pod(pod: Mapping[str, Any]) -> Json:
    spec = pod["spec"]
    main = next(container for container in spec["containers"] if container["name"] == MAIN_CONTAINER)
    image_fields = {name: main[name] for name in ("image", "imagePullPolicy") if name in main}
    return {
        **{name: spec[name] for name in _COPIED_FIELDS if spec.get(name)},
        "securityContext": spec.get("securityContext") or _security_context(ResultPodSettings.user),
        "containers": [{**image_fields, "command": list(main["command"])[:1]}],
    }


def _spec_from_fallback(job: JobRecord, fallback: ResultPodSettings) -> Json:
    image = fallback.image or job.status.image
    if image is None:
        raise NotPossible(
            f"no pod of job {job.ref} is left and its status names no image to read its volume with: set "
            f"{_IMAGE_VARIABLE} to an image with Python 3, such as the image of the jobs' pods"
        )
    return {
        "securityContext": _security_context(fallback.user),
        "containers": [{"image": image, "command": [fallback.python]}],
    }


def _security_context(user: int | None) -> Json:
    identity = {} if user is None else {"runAsUser": user, "runAsGroup": user, "fsGroup": user}
    return {
        "runAsNonRoot": True,
        **identity,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }
