"""AlignmentJobs for a cluster with simulated pods, and the behaviour of those pods."""

import json
from collections.abc import Mapping
from typing import Any

from .behaviour import Behaviour, Exit, Json
from .control_plane import ControlPlane

CLAIMS = ("data", "models", "runs")
_PROCESS = "kubealign.dev/process"


def _volume(claim: str, path: str) -> Json:
    return {"volume": {"claimName": claim, "path": path}}


def sft(name: str, **spec: Any) -> Json:
    """Return an SFT job with preparation, bus, trainer and driver. Fields in `spec` replace the defaults."""
    parts = {
        "maxSteps": 10,
        "algorithm": {"sft": {"rowsPerStep": 8}},
        "policy": {"model": _volume("models", "base")},
        "data": {"demonstrations": {"source": _volume("data", "train.jsonl")}},
        "checkpoint": {"volume": {"claimName": "runs"}},
    }
    return _job(name, parts | spec)


def rloo(name: str, **spec: Any) -> Json:
    """Return an RLOO job with two ranks, a reward model and two rollout workers."""
    parts = {
        "maxSteps": 10,
        "algorithm": {"rloo": {"promptsPerStep": 8, "samplesPerPrompt": 4}},
        "policy": {"model": _volume("models", "base")},
        "data": {"prompts": {"source": _volume("data", "prompts.jsonl")}},
        "trainer": {"ranks": 2},
        "rewards": [{"name": "helpful", "model": _volume("models", "rm")}],
        "rollout": {"replicas": 2},
        "checkpoint": {"volume": {"claimName": "runs"}},
    }
    return _job(name, parts | spec)


def _job(name: str, spec: Json) -> Json:
    return {
        "apiVersion": "kubealign.dev/v1alpha1",
        "kind": "AlignmentJob",
        "metadata": {"name": name},
        "spec": spec,
    }


def make_claims(control_plane: ControlPlane, namespace: str) -> None:
    """Create the volumes and claims that the jobs name; simulated pods mount none of them."""
    names = {claim: f"{namespace}-{claim}" for claim in CLAIMS}
    shared: Json = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    volumes = []
    for claim, volume in names.items():
        source = {"hostPath": {"path": "/none"}, "capacity": {"storage": "1Gi"}}
        claimed = {"claimRef": {"namespace": namespace, "name": claim}}
        volumes.append(_core("PersistentVolume", {"name": volume}, {**shared, **source, **claimed}))
    apply(control_plane, namespace, *volumes)
    # A claim that its controller sees before the volume waits fifteen seconds for the next sync.
    _wait_for(control_plane, "Available", *(f"pv/{volume}" for volume in names.values()))
    request = {"resources": {"requests": {"storage": "1Gi"}}}
    apply(
        control_plane,
        namespace,
        *(
            _core("PersistentVolumeClaim", {"name": claim}, {**shared, **request, "volumeName": volume})
            for claim, volume in names.items()
        ),
    )
    _wait_for(control_plane, "Bound", *(f"pvc/{claim}" for claim in names), "-n", namespace)


def _wait_for(control_plane: ControlPlane, phase: str, *objects: str) -> None:
    condition = f"--for=jsonpath={{.status.phase}}={phase}"
    control_plane.kubectl("wait", *objects, condition, "--timeout=60s", timeout=70)


def apply(control_plane: ControlPlane, namespace: str, *manifests: Mapping[str, Any]) -> None:
    """Apply all manifests with one `kubectl apply`."""
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": manifests})
    control_plane.kubectl("apply", "--server-side", "-f", "-", "-n", namespace, stdin=text)


def process_of(pod: Json) -> str:
    """Return the name of the job process that a pod runs, such as trainer-0."""
    return str(pod["metadata"].get("labels", {}).get(_PROCESS, ""))


def until_told(pod: Json) -> Behaviour:
    """End the preparation at once; let every other process run until the test ends it."""
    return Behaviour(exit=Exit()) if process_of(pod) == "prepare" else Behaviour()


def finishing(pod: Json) -> Behaviour:
    """Behave like `until_told`, but end the driver with success after half a second."""
    if process_of(pod) == "driver":
        return Behaviour(exit=Exit(), exit_after=0.5)
    return until_told(pod)


def _core(kind: str, metadata: Json, spec: Json) -> Json:
    return {"apiVersion": "v1", "kind": kind, "metadata": metadata, "spec": spec}
