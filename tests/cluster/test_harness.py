"""Behaviour of the test clusters that the operator's tests rely on."""

import os
import subprocess
import time
from typing import Any

import pytest
from kubernetes import client

from cluster.support.behaviour import Behaviour, Exit, Waiting
from cluster.support.control_plane import ControlPlane
from cluster.support.kubectl import KubectlFailed
from cluster.support.programs import KUBERNETES_VERSION, program
from cluster.support.simulated_kubelet import SimulatedKubelet

_GROUP = "harness.kubealign.dev"


def definition() -> dict[str, Any]:
    """Return a custom resource definition with one rule: `least` may not exceed `most`."""
    number = {"type": "integer"}
    rule = {"rule": "self.least <= self.most", "message": "least is more than most"}
    spec = {
        "type": "object",
        "properties": {"least": number, "most": {**number, "default": 9}},
        "x-kubernetes-validations": [rule],
    }
    schema = {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec}}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"ranges.{_GROUP}"},
        "spec": {
            "group": _GROUP,
            "names": {"kind": "Range", "plural": "ranges", "singular": "range"},
            "scope": "Namespaced",
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": schema}],
        },
    }


def test_the_api_server_has_the_version_of_the_program(control_plane: ControlPlane) -> None:
    """Check that the versions of `make test-versions`, which KUBEBUILDER_ASSETS names, are what runs."""
    command = [program("kube-apiserver"), "--version"]
    printed = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout.split()
    assert client.VersionApi(control_plane.api).get_code().git_version == printed[-1]
    if "KUBEBUILDER_ASSETS" not in os.environ:
        assert printed[-1] == f"v{KUBERNETES_VERSION}"


def pod(name: str, **spec: Any) -> dict[str, Any]:
    main = {"name": "main", "image": "none"}
    body = {"restartPolicy": "Never", "containers": [main], **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": body}


def test_server_side_apply_defaults_and_cel_rules_work(control_plane: ControlPlane, namespace: str) -> None:
    control_plane.kubectl.apply(definition(), namespace=namespace)
    control_plane.kubectl.wait_for(f"crd/ranges.{_GROUP}", "condition=Established", namespace=namespace)
    resource = {
        "apiVersion": f"{_GROUP}/v1",
        "kind": "Range",
        "metadata": {"name": "good"},
        "spec": {"least": 3},
    }
    control_plane.kubectl.apply(resource, namespace=namespace)
    objects = client.CustomObjectsApi(control_plane.api)
    stored: Any = objects.get_namespaced_custom_object(_GROUP, "v1", namespace, "ranges", "good")
    assert stored["spec"] == {"least": 3, "most": 9}
    with pytest.raises(KubectlFailed, match="least is more than most"):
        control_plane.kubectl.apply({**resource, "spec": {"least": 10}}, namespace=namespace)


def test_a_killed_api_server_comes_back_with_its_data(control_plane: ControlPlane, namespace: str) -> None:
    control_plane.kubectl("create", "configmap", "kept", "-n", namespace, "--from-literal=a=b")
    before = control_plane.apiserver.pid
    control_plane.restart_apiserver()
    assert control_plane.apiserver.pid != before
    config_map = client.CoreV1Api(control_plane.api).read_namespaced_config_map("kept", namespace)
    assert config_map.data == {"a": "b"}


def test_a_simulated_pod_is_ready_and_fails_as_scripted(
    control_plane: ControlPlane, simulated: SimulatedKubelet, namespace: str
) -> None:
    simulated.behave = lambda manifest: Behaviour(start_after=0.2, ready_after=0.2)
    control_plane.kubectl.apply(pod("one"), namespace=namespace)
    control_plane.kubectl.wait_for("pod/one", "condition=Ready", namespace=namespace)
    simulated.exit(namespace, "one", Exit(78, "the spec is bad"))
    seen: Any = client.CoreV1Api(control_plane.api).read_namespaced_pod("one", namespace)
    ended = seen.status.container_statuses[0].state.terminated
    assert (seen.status.phase, ended.exit_code, ended.message) == ("Failed", 78, "the spec is bad")


def test_a_simulated_pod_restarts_as_its_policy_says(
    control_plane: ControlPlane, simulated: SimulatedKubelet, namespace: str
) -> None:
    def fails_once(manifest: dict[str, Any]) -> Behaviour:
        statuses = manifest["status"].get("containerStatuses", [{"restartCount": 0}])
        return Behaviour(exit=Exit(1) if statuses[0]["restartCount"] == 0 else None, restart_after=0.1)

    simulated.behave = fails_once
    control_plane.kubectl.apply(pod("again", restartPolicy="Always"), namespace=namespace)
    path = "jsonpath={.status.containerStatuses[0].restartCount}=1"
    control_plane.kubectl.wait_for("pod/again", path, namespace=namespace)
    control_plane.kubectl.wait_for("pod/again", "condition=Ready", namespace=namespace)


def test_a_simulated_pod_ends_at_its_deadline(
    control_plane: ControlPlane, simulated: SimulatedKubelet, namespace: str
) -> None:
    control_plane.kubectl.apply(pod("long"), namespace=namespace)
    control_plane.kubectl.wait_for("pod/long", "condition=Ready", namespace=namespace)
    patch = '{"spec": {"activeDeadlineSeconds": 1}}'
    control_plane.kubectl("patch", "pod", "long", "-n", namespace, "-p", patch)
    control_plane.kubectl.wait_for("pod/long", "jsonpath={.status.phase}=Failed", namespace=namespace)
    seen: Any = client.CoreV1Api(control_plane.api).read_namespaced_pod("long", namespace)
    ended = seen.status.container_statuses[0].state.terminated
    assert (seen.status.reason, ended.exit_code) == ("DeadlineExceeded", 143)


def test_a_simulated_pod_leaves_another_of_its_name_alone(
    control_plane: ControlPlane, simulated: SimulatedKubelet, namespace: str
) -> None:
    core = client.CoreV1Api(control_plane.api)
    simulated.behave = lambda manifest: Behaviour(stop_after=3.0)
    control_plane.kubectl.apply(pod("name"), namespace=namespace)
    control_plane.kubectl.wait_for("pod/name", "condition=Ready", namespace=namespace)
    core.delete_namespaced_pod("name", namespace)
    # The pod is force-deleted while it stops; the next pod takes its name before it has stopped.
    core.delete_namespaced_pod("name", namespace, grace_period_seconds=0)
    control_plane.kubectl.apply(pod("name"), namespace=namespace)
    control_plane.kubectl.wait_for("pod/name", "condition=Ready", namespace=namespace)
    stays = control_plane.kubectl.start("wait", "pod/name", "-n", namespace, "--for=delete", "--timeout=5s")
    assert "timed out" in stays.communicate(timeout=30)[0]


def test_simulated_pods_go_on_after_the_api_server_was_away(
    control_plane: ControlPlane, simulated: SimulatedKubelet, namespace: str
) -> None:
    control_plane.restart_apiserver()
    control_plane.kubectl.apply(pod("after"), namespace=namespace)
    control_plane.kubectl.wait_for("pod/after", "condition=Ready", namespace=namespace)


def test_a_simulated_pod_can_be_stuck_and_is_deleted_in_order(
    control_plane: ControlPlane, simulated: SimulatedKubelet, namespace: str
) -> None:
    why = Waiting("ImagePullBackOff", 'Back-off pulling image "none"')
    simulated.behave = lambda manifest: Behaviour(stuck=why)
    control_plane.kubectl.apply(pod("stuck"), namespace=namespace)
    path = "jsonpath={.status.containerStatuses[0].state.waiting.reason}=ImagePullBackOff"
    control_plane.kubectl.wait_for("pod/stuck", path, namespace=namespace)
    control_plane.kubectl("delete", "pod", "stuck", "-n", namespace, "--timeout=30s")
    deadline = time.monotonic() + 30
    while f"{namespace}/stuck" in simulated.names() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert f"{namespace}/stuck" not in simulated.names()
