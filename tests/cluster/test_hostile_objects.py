"""Objects of one tenant against operator and dashboard: they go on, and so do the jobs of other tenants."""

import json
from pathlib import Path
from typing import Any

import pytest

from cluster.support.cluster_jobs import finishing, make_claims, sft
from cluster.support.dashboard_process import DashboardProcess
from cluster.support.operator_process import OperatorProcess
from cluster.support.simulated_kubelet import SimulatedKubelet
from cluster.support.team import Team
from support.deep_documents import with_deep_affinity

_LEVELS = 2_000


def _apply_deep(team: Team, name: str) -> None:
    text = with_deep_affinity(sft(name), _LEVELS)
    team.control_plane.kubectl("create", "--validate=ignore", "-f", "-", "-n", team.namespace, stdin=text)


def _condition(team: Team, name: str) -> Any:
    """Return the job's condition Accepted, without parsing the job's spec."""
    path = '{.status.conditions[?(@.type=="Accepted")]}'
    text = team.control_plane.kubectl("get", "aj", name, "-n", team.namespace, f"-o=jsonpath={path}")
    return json.loads(text) if text else {}


def _until_judged(team: Team, name: str) -> Any:
    team.until(lambda: _condition(team, name) != {}, f"{name} to be judged")
    return _condition(team, name)


def _phase(team: Team, name: str) -> str:
    return team.control_plane.kubectl("get", "aj", name, "-n", team.namespace, "-o=jsonpath={.status.phase}")


@pytest.fixture
def other(team: Team, namespace_of_another_tenant: str) -> Team:
    make_claims(team.control_plane, namespace_of_another_tenant)
    return Team(team.control_plane, namespace_of_another_tenant)


def test_a_job_that_is_nested_too_deeply_harms_nobody_else(
    team: Team, other: Team, simulated: SimulatedKubelet, tmp_path: Path
) -> None:
    simulated.behave = finishing
    kubeconfig, namespaces = team.control_plane.kubeconfig, [team.namespace, other.namespace]
    # The first list has such a job, and a watch gets another one.
    _apply_deep(team, "listed")
    with (
        OperatorProcess(tmp_path, kubeconfig, team.namespace, namespaces=namespaces) as operator,
        DashboardProcess(tmp_path, kubeconfig, NAMESPACES=",".join(namespaces)) as dashboard,
    ):
        pids = (operator.daemon.pid, dashboard.daemon.pid)
        other.apply(sft("before"))
        _apply_deep(team, "watched")
        for name in ("listed", "watched"):
            condition = _until_judged(team, name)
            assert (condition["status"], condition["reason"]) == ("False", "Invalid")
            assert (
                "spec.podTemplate.spec.affinity.nodeAffinity.a is nested too deeply" in condition["message"]
            )
            assert "at most 100 levels" in condition["message"]
            assert _phase(team, name) == "Pending"
        other.apply(sft("after"))
        other.until_phase("before", "Succeeded")
        other.until_phase("after", "Succeeded")
        assert operator.metric("kubealign_operator_unreadable_objects_total", resource="alignmentjobs") >= 2
        assert operator.metric("kubealign_operator_reconcile_errors_total", reason="Fault") == 0
        with dashboard.client(team.control_plane.token) as asking:
            jobs = asking.get(f"/namespaces/{team.namespace}/alignmentjobs").json()
        assert "watched" in json.dumps(jobs)
        assert (operator.daemon.alive, dashboard.daemon.alive) == (True, True)
        assert (operator.daemon.pid, dashboard.daemon.pid) == pids
    team.control_plane.kubectl("delete", "aj", "--all", "-n", team.namespace)
