"""Port and NetworkPolicy of the rollout workers that serve agents outside the job."""

from typing import Any

import pytest

from kubealign.pod_contract import AGENTS_PORT
from kubealign.roles import roles
from kubealign_operator.manifests.context import RenderContext
from kubealign_operator.manifests.network_policy import peers_policy
from kubealign_operator.manifests.pod import build_pod
from kubealign_operator.planner.validation import parse_job
from support.rendering.jobs import PLATFORM, UID, ppo

Json = dict[str, Any]

TOKEN = {"tokenVariable": "AGENTS_TOKEN"}


def _context(external: Json | None) -> RenderContext:
    job = ppo()
    if external is not None:
        job["spec"].setdefault("rollout", {})["workflow"] = {"agent": {"external": external}}
    parsed = parse_job(job)
    return RenderContext(parsed.name, "team", UID, parsed, PLATFORM)


def _ports(context: RenderContext) -> dict[str, dict[str, int]]:
    """Return the ports of each pod's container by name."""
    pods = {process.name: build_pod(context, process, 0) for process in roles(context.job)}
    return {
        name: {port["name"]: port["containerPort"] for port in pod["spec"]["containers"][0].get("ports", [])}
        for name, pod in pods.items()
    }


@pytest.mark.parametrize(("external", "port"), [(TOKEN, AGENTS_PORT), (TOKEN | {"port": 9000}, 9000)])
def test_any_pod_may_reach_the_rollout_workers_at_their_port(external: Json, port: int) -> None:
    context = _context(external)
    with_port = {name for name, ports in _ports(context).items() if "agents" in ports}
    assert with_port == {process.name for process in roles(context.job) if process.role == "rollout"}
    assert all(_ports(context)[name]["agents"] == port for name in with_port)
    admitted = peers_policy(context)["spec"]["ingress"]
    assert {"from": [{"namespaceSelector": {}}], "ports": [{"protocol": "TCP", "port": port}]} in admitted


def test_no_other_job_has_the_port() -> None:
    context = _context(None)
    assert not any("agents" in ports for ports in _ports(context).values())
    assert len(peers_policy(context)["spec"]["ingress"]) == 2
