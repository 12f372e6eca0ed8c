"""Namespace with jobs, read directly from the API server and not through the operator."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from kubernetes import client

from kubealign.labels import ATTEMPT_LABEL, JOB_LABEL, PROCESS_LABEL

from .behaviour import Behaviour, Json
from .cluster_jobs import apply
from .control_plane import ControlPlane

_SECONDS = 60.0
_POLL_SECONDS = 0.1

_JOBS = ("kubealign.dev", "v1alpha1")


@dataclass(frozen=True)
class JobPod:
    """A pod of a job. `node` is empty until the pod is scheduled."""

    name: str
    uid: str
    node: str


class Team:
    """Jobs and pods of a namespace: current state, and waits for an expected state."""

    def __init__(self, control_plane: ControlPlane, namespace: str) -> None:
        self.control_plane = control_plane
        self.namespace = namespace
        self._custom = client.CustomObjectsApi(control_plane.api)
        self._core = client.CoreV1Api(control_plane.api)

    def apply(self, *jobs: Json) -> None:
        apply(self.control_plane, self.namespace, *jobs)

    def job(self, name: str) -> Any:
        return self._custom.get_namespaced_custom_object(*_JOBS, self.namespace, "alignmentjobs", name)

    def phases(self) -> dict[str, str]:
        listed: Any = self._custom.list_namespaced_custom_object(*_JOBS, self.namespace, "alignmentjobs")
        return {item["metadata"]["name"]: item.get("status", {}).get("phase", "") for item in listed["items"]}

    def pods(self) -> dict[str, str]:
        """Return the pods of the namespace: name -> uid."""
        listed = self._core.list_namespaced_pod(self.namespace)
        return {pod.metadata.name: pod.metadata.uid for pod in listed.items}

    def pod_phases(self) -> dict[str, str]:
        """Return the phases of the pods of the namespace by name."""
        listed = self._core.list_namespaced_pod(self.namespace)
        return {pod.metadata.name: pod.status.phase for pod in listed.items}

    def pod_events(self) -> set[tuple[str, str, str, str]]:
        """Return pod, type, reason and message of each event about a pod, as kubectl lists them."""
        listed = self._core.list_namespaced_event(self.namespace, field_selector="involvedObject.kind=Pod")
        return {
            (event.involved_object.name, event.type, event.reason, event.message) for event in listed.items
        }

    def pod_nodes(self) -> dict[str, str]:
        """Return the nodes of the namespace's scheduled pods: name -> node."""
        listed = self._core.list_namespaced_pod(self.namespace)
        return {pod.metadata.name: pod.spec.node_name for pod in listed.items if pod.spec.node_name}

    def newest_pod(self, job: str, process: str) -> JobPod | None:
        """Return the pod of the last attempt of a process; None: there is none."""
        selector = f"{JOB_LABEL}={job},{PROCESS_LABEL}={process}"
        listed = self._core.list_namespaced_pod(self.namespace, label_selector=selector).items
        newest = max(listed, key=lambda pod: int(pod.metadata.labels[ATTEMPT_LABEL]), default=None)
        if newest is None:
            return None
        return JobPod(newest.metadata.name, newest.metadata.uid, newest.spec.node_name or "")

    def until(self, so: Callable[[], bool], what: str, seconds: float = _SECONDS) -> None:
        end = time.monotonic() + seconds
        while not so():
            if time.monotonic() > end:
                jobs = self.control_plane.kubectl("get", "aj,pods", "-n", self.namespace)
                pytest.fail(f"waited {seconds:g} s for {what}; there are\n{jobs}")
            time.sleep(_POLL_SECONDS)

    def until_phase(self, name: str, phase: str) -> None:
        self.until(lambda: self.phases().get(name) == phase, f"{name} to be {phase}")


class Runs:
    """Behaviour that records the pods that were started: pod name -> uids."""

    def __init__(self, behave: Callable[[Json], Behaviour]) -> None:
        self._behave = behave
        self.uids: dict[str, set[str]] = {}

    def __call__(self, pod: Json) -> Behaviour:
        metadata = pod["metadata"]
        self.uids.setdefault(metadata["name"], set()).add(metadata["uid"])
        return self._behave(pod)
