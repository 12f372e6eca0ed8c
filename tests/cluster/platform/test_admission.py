"""The chart's admission policy on a real API server: jobs that are too large are refused."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.support.cluster_jobs import rloo, sft
from cluster.support.control_plane import ControlPlane
from cluster.support.door import Door, Refused
from cluster.support.helm import Helm
from cluster.support.programs import find
from kubealign.roles import process_count
from kubealign.spec.job import AlignmentJob

pytestmark = pytest.mark.skipif(find("helm") is None, reason="helm is not built: `make cluster-tools`")

_LIMIT = 24
_VOLUME = {"volume": {"claimName": "models", "path": "rm"}}
_KINDS = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")


def _policies(helm: Helm, **values: Any) -> list[dict[str, Any]]:
    return [manifest for manifest in helm.render(values) if manifest["kind"] in _KINDS]


@pytest.fixture
def limited(control_plane: ControlPlane, door: Door, namespace: str, tmp_path: Path) -> Iterator[Door]:
    """Door to a namespace with the chart's policy, once the API server applies it."""
    values = {"watchNamespaces": [namespace], "jobs": {"maxProcesses": _LIMIT}}
    policies = _policies(Helm(tmp_path / "helm"), **values)
    assert len(policies) == 2
    control_plane.kubectl.apply(*policies)
    try:
        control_plane.kubectl.wait_for(
            f"validatingadmissionpolicy/{policies[0]['metadata']['name']}",
            "jsonpath={.status.observedGeneration}=1",
            seconds=60,
        )
        checked = _status(control_plane, policies[0]).get("typeChecking", {})
        assert not checked.get("expressionWarnings"), checked
        yield door
    finally:
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": policies})
        control_plane.kubectl("delete", "--ignore-not-found", "-f", "-", stdin=text)


def _status(control_plane: ControlPlane, policy: dict[str, Any]) -> dict[str, Any]:
    text = control_plane.kubectl(
        "get", "validatingadmissionpolicy", policy["metadata"]["name"], "-o", "jsonpath={.status}"
    )
    status: dict[str, Any] = json.loads(text or "{}")
    return status


def _large(replicas: int) -> dict[str, Any]:
    """Return a job of 7 + 2 x replicas processes."""
    return rloo(
        "large",
        reference={"model": _VOLUME, "ranks": 2},
        rollout={"replicas": replicas, "engine": {"torch": {"tensorParallel": 2}}},
    )


def _count(job: dict[str, Any]) -> int:
    return process_count(AlignmentJob.model_validate(job))


def _until_refused(door: Door, job: dict[str, Any]) -> str:
    """Return the message of the refusal: a new policy takes effect within seconds."""
    for _ in range(600):
        try:
            door.admit(job)
        except Refused as refused:
            return str(refused)
    raise AssertionError("the job was admitted")


def test_a_job_beyond_the_limit_is_refused(limited: Door, team: Any) -> None:
    assert _count(_large(8)) == 23
    assert _count(_large(9)) == 25
    message = _until_refused(limited, _large(9))
    assert "spec asks for 25 processes or more: at most 24 are allowed" in message
    limited.create(_large(8))
    with pytest.raises(Refused, match="at most 24"):
        limited.patch("large", {"spec": {"rollout": {"replicas": 9}}})
    limited.patch("large", {"spec": {"rollout": {"replicas": 7}}})
    limited.create(sft("small"))
    for spec in (
        {"trainer": {"ranks": 64}},
        {"rewards": [{"name": "many", "model": _VOLUME, "replicas": 30}]},
    ):
        with pytest.raises(Refused, match="at most 24"):
            limited.admit(rloo("other", **spec))


def test_the_policy_can_be_turned_off(tmp_path: Path) -> None:
    assert not _policies(Helm(tmp_path / "helm"), admissionPolicy={"enabled": False})
