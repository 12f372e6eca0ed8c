"""Operator against a real API server, with simulated pods."""

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from cluster.support.behaviour import Behaviour, Exit
from cluster.support.cluster_jobs import finishing, process_of, rloo, sft, until_told
from cluster.support.faulty_proxy import Asked, Fault, FaultyProxy
from cluster.support.operator_process import OperatorProcess
from cluster.support.simulated_kubelet import SimulatedKubelet
from cluster.support.team import Runs, Team


def test_jobs_go_through_their_life(
    team: Team, operator: OperatorProcess, simulated: SimulatedKubelet
) -> None:
    simulated.behave = runs = Runs(finishing)
    team.apply(sft("one"), rloo("two", policy={"model": {"job": {"name": "one"}}}))
    team.until_phase("two", "Succeeded")
    assert team.phases() == {"one": "Succeeded", "two": "Succeeded"}
    assert team.job("one")["status"]["result"]["claimName"] == "runs"
    assert {name: len(uids) for name, uids in runs.uids.items()} == dict.fromkeys(runs.uids, 1)
    assert operator.metric("kubealign_jobs", phase="Succeeded") == 2
    assert operator.metric("kubealign_operator_reconcile_errors_total", reason="Fault") == 0
    events = team.control_plane.kubectl("get", "events.events.k8s.io", "-n", team.namespace, "-o", "wide")
    assert "Succeeded" in events
    team.control_plane.kubectl("delete", "aj", "--all", "-n", team.namespace)
    team.until(lambda: not team.pods(), "the pods to go with their jobs")


def test_a_finished_job_never_runs_again(
    team: Team, operator: OperatorProcess, simulated: SimulatedKubelet
) -> None:
    simulated.behave = runs = Runs(finishing)
    team.apply(sft("one"))
    team.until_phase("one", "Succeeded")
    kubectl = team.control_plane.kubectl
    kubectl("delete", "pods,secrets,configmaps,services", "--all", "-n", team.namespace)
    kubectl("annotate", "aj", "one", "touched=yes", "-n", team.namespace)
    operator.daemon.stop()
    operator.start()
    team.until(lambda: operator.leads, "the operator to lead again")
    kubectl("annotate", "aj", "one", "touched=twice", "--overwrite", "-n", team.namespace)
    # The operator learns of this job last: when it has succeeded, the first job was reconciled too.
    team.apply(sft("after"))
    team.until_phase("after", "Succeeded")
    assert not [name for name in team.pods() if name.startswith("one-")]
    assert all(len(uids) == 1 for uids in runs.uids.values())


def test_a_standby_takes_over(team: Team, simulated: SimulatedKubelet, tmp_path: Path) -> None:
    simulated.behave = runs = Runs(until_told)
    where = (tmp_path, team.control_plane.kubeconfig, team.namespace)
    with OperatorProcess(*where, name="first") as first:
        team.until(lambda: first.leads, "the first to lead")
        with OperatorProcess(*where, name="second") as second:
            team.apply(sft("one"))
            team.until_phase("one", "Running")
            # The phase is written before the driver's pod is created.
            team.until(lambda: "one-driver-0" in team.pods(), "the driver's pod")
            before = team.pods()
            assert not second.leads
            first.daemon.kill()
            team.until(lambda: second.leads, "the second to lead after the first was killed")
            team.apply(sft("two"))
            team.until_phase("two", "Running")
            assert {name: uid for name, uid in team.pods().items() if name.startswith("one-")} == before
            first.start()
            second.daemon.stop()
            # The lease was released: the other replica does not have to wait for its expiry.
            assert any("released the lease" in line["message"] for line in second.logged())
            team.until(lambda: first.leads, "the first to lead again")
            simulated.exit(team.namespace, "one-driver-0", Exit())
            team.until_phase("one", "Succeeded")
    assert all(len(uids) == 1 for uids in runs.uids.values())


def test_a_paused_leader_does_nothing_when_it_wakes(
    team: Team, simulated: SimulatedKubelet, tmp_path: Path
) -> None:
    simulated.behave = until_told
    where = (tmp_path, team.control_plane.kubeconfig, team.namespace)
    with OperatorProcess(*where, name="first") as first:
        team.until(lambda: first.leads, "the first to lead")
        with OperatorProcess(*where, name="second") as second:
            first.pause()
            team.until(lambda: second.leads, "the second to lead")
            team.apply(sft("one"))
            team.until_phase("one", "Running")
            first.wake()
            team.until(lambda: not first.daemon.alive, "the woken one to end")
            assert team.phases() == {"one": "Running"}


def _mixed(chance: random.Random) -> Callable[[Asked], Fault | None]:
    """Return faults for about one call in six, drawn from all kinds of faults."""

    def faults(asked: Asked) -> Fault | None:
        if asked.resource == "leases":
            return None
        if asked.verb == "watch":
            return Fault(watch_lasts=chance.uniform(0.2, 3.0), expired=chance.random() < 0.3)
        if chance.random() > 0.17:
            return None
        lost_or_refused = [
            Fault(status=500),
            Fault(status=429, retry_after=1),
            Fault(delay=chance.uniform(0.1, 1.0)),
            Fault(lost=True),
            Fault(lost=True, status=504),
            Fault(delay=6.0, lost=True),
        ]
        if asked.resource == "alignmentjobs" and asked.verb == "patch":
            lost_or_refused.append(Fault(status=409))
        if asked.verb == "list":
            lost_or_refused.append(Fault(status=410))
        return chance.choice(lost_or_refused)

    return faults


@pytest.mark.timeout(400)
def test_faults_under_load_lose_no_job_and_run_none_twice(
    team: Team, simulated: SimulatedKubelet, tmp_path: Path
) -> None:
    """Injects 409, 410, 429, 500, answers lost after the write, slow answers and broken watches."""
    simulated.behave = runs = Runs(finishing)
    count = 50
    with (
        FaultyProxy(team.control_plane, tmp_path / "faulty.kubeconfig", _mixed(random.Random(7))) as proxy,
        OperatorProcess(tmp_path, proxy.kubeconfig, team.namespace, requestSeconds=3, resyncSeconds=20) as op,
    ):
        team.apply(*(sft(f"job-{number}") for number in range(count)))
        team.until(
            lambda: Counter(team.phases().values()) == {"Succeeded": count}, "every job to succeed", 200
        )
        assert proxy.injected > count
        assert op.metric("kubealign_operator_reconcile_errors_total", reason="Fault") == 0
        failed = {name: team.job(name)["status"]["restarts"] for name in team.phases()}
    assert set(failed.values()) == {0}
    twice = {name: uids for name, uids in runs.uids.items() if len(uids) != 1}
    assert not twice
    assert len(runs.uids) == count * 4


def test_the_operator_survives_an_api_server_that_is_killed(
    team: Team, operator: OperatorProcess, simulated: SimulatedKubelet
) -> None:
    simulated.behave = runs = Runs(until_told)
    team.apply(sft("one"))
    team.until_phase("one", "Running")
    team.control_plane.restart_apiserver()
    team.apply(sft("two"))
    team.until_phase("two", "Running")
    simulated.exit(team.namespace, "one-driver-0", Exit())
    team.until_phase("one", "Succeeded")
    assert all(len(uids) == 1 for uids in runs.uids.values())


def test_an_exceeded_quota_is_reported_and_recovers(
    team: Team, operator: OperatorProcess, simulated: SimulatedKubelet
) -> None:
    simulated.behave = until_told
    kubectl = team.control_plane.kubectl
    kubectl("create", "quota", "tight", "--hard=pods=1", "-n", team.namespace)
    # The quota counts nothing before its controller has synced.
    path = "{.status.hard.pods}"
    team.until(
        lambda: kubectl("get", "quota", "tight", "-n", team.namespace, f"-o=jsonpath={path}") == "1",
        "the quota",
    )
    team.apply(sft("one"))
    team.until(
        lambda: "exceeded quota: tight" in team.job("one").get("status", {}).get("message", ""),
        "the quota in the job's message",
    )
    kubectl("delete", "quota", "tight", "-n", team.namespace)
    team.until_phase("one", "Running")
    assert "quota" not in team.job("one")["status"].get("message", "")


def test_a_foreign_object_is_left_alone_and_reported(
    team: Team, operator: OperatorProcess, simulated: SimulatedKubelet
) -> None:
    simulated.behave = until_told
    kubectl = team.control_plane.kubectl
    kubectl("create", "configmap", "one-document", "--from-literal=theirs=yes", "-n", team.namespace)
    team.apply(sft("one"))
    team.until(
        lambda: "one-document that does not belong" in team.job("one").get("status", {}).get("message", ""),
        "the stranger in the job's message",
    )
    value = kubectl("get", "configmap", "one-document", "-n", team.namespace, "-o=jsonpath={.data.theirs}")
    assert value == "yes"
    kubectl("delete", "configmap", "one-document", "-n", team.namespace)
    team.until_phase("one", "Running")


def test_a_job_that_is_made_again_is_another_job(
    team: Team, operator: OperatorProcess, simulated: SimulatedKubelet
) -> None:
    """A second job of the same name comes while pods and objects of the first are still being deleted."""
    simulated.behave = lambda pod: (
        Behaviour(stop_after=1.0) if process_of(pod) != "prepare" else finishing(pod)
    )
    team.apply(sft("one"))
    team.until_phase("one", "Running")
    before = team.pods()
    team.control_plane.kubectl("delete", "aj", "one", "-n", team.namespace)
    team.apply(sft("one"))
    team.until_phase("one", "Running")
    assert not set(before.values()) & set(team.pods().values())


def test_an_old_view_of_a_job_overwrites_nothing(
    team: Team, simulated: SimulatedKubelet, tmp_path: Path
) -> None:
    """The job changes while the operator's first status patch is in flight."""
    simulated.behave = until_told

    def slow_first_patch(asked: Asked) -> Fault | None:
        patches = [one for one in proxy.asked if one.resource == "alignmentjobs" and one.verb == "patch"]
        first = patches and patches[0].number == asked.number
        return Fault(delay=2.0) if first else None

    with (
        FaultyProxy(team.control_plane, tmp_path / "faulty.kubeconfig", slow_first_patch) as proxy,
        OperatorProcess(tmp_path, proxy.kubeconfig, team.namespace) as op,
    ):
        team.until(lambda: op.leads, "the operator to lead")
        team.apply(sft("one"))
        team.until(lambda: proxy.injected == 1, "the patch to be on its way")
        team.control_plane.kubectl("annotate", "aj", "one", "touched=yes", "-n", team.namespace)
        team.until_phase("one", "Running")
        refused = op.metric(
            "kubealign_operator_api_calls_total", verb="patch", resource="alignmentjobs", code="409"
        )
        assert refused == 1
