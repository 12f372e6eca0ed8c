"""Commands as a plugin of the real kubectl, with a real API server and operator, and simulated pods."""

import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from cluster.support.accounts import account, kubeconfig
from cluster.support.cluster_jobs import rloo, until_told
from cluster.support.daemon import plain_environment
from cluster.support.operator_process import OperatorProcess
from cluster.support.programs import program
from cluster.support.simulated_kubelet import SimulatedKubelet
from cluster.support.team import Team

_SECONDS = 120.0


class Plugin:
    """Runs `kubectl align ...` with a kubeconfig."""

    def __init__(self, kubeconfig: Path, namespace: str) -> None:
        programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self._environment = {**plain_environment(), "PATH": programs, "KUBECONFIG": str(kubeconfig)}
        self._namespace = namespace

    def __call__(self, *arguments: str, code: int = 0) -> str:
        """Run the plugin, assert its exit code, and return stdout, plus stderr for a non-zero code."""
        command = [str(program("kubectl")), "align", *arguments, "-n", self._namespace]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_SECONDS, check=False, env=self._environment
        )
        assert done.returncode == code, f"{arguments}: exit {done.returncode}\n{done.stdout}{done.stderr}"
        assert "Traceback" not in done.stderr
        return done.stdout + (done.stderr if code else "")


@pytest.fixture
def align(team: Team) -> Iterator[Plugin]:
    yield Plugin(team.control_plane.kubeconfig, team.namespace)


def test_a_job_by_the_plugin(
    align: Plugin, team: Team, operator: OperatorProcess, simulated: SimulatedKubelet, tmp_path: Path
) -> None:
    simulated.behave = until_told
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(rloo("sums")))
    assert align("submit", str(file), "--dry-run") == "sums: valid (dry run)\n"
    assert align("submit", str(file), "-o", "name") == "alignmentjob.kubealign.dev/sums\n"
    assert "there is a job" in align("submit", str(file), code=1)
    assert "sums: Running" in align("wait", "sums", "--for", "Running", "--timeout", "60s")
    assert align("list", "-o", "wide").splitlines()[1].split()[:2] == ["sums", "Running"]
    assert team.namespace in align("list", "-A", "--search", "sums")
    align("scale", "sums", "3")
    assert json.loads(align("get", "sums", "-o", "json"))["spec"]["rollout"]["replicas"] == 3
    described = align("describe", "sums")
    for word in ("sums-trainer-1-0", "Conditions", "Accepted", "rollout"):
        assert word in described
    archive = tmp_path / "sums.tar.gz"
    # Without a dashboard there are no metrics, which the command says.
    assert align("debug", "sums", "-o", str(archive)).startswith(f"{archive}\n")
    assert archive.stat().st_mode & 0o777 == 0o600
    with tarfile.open(archive) as files:
        names = files.getnames()
        pods = json.load(files.extractfile("sums-debug/pods.json"))  # type: ignore[arg-type]
        job = json.load(files.extractfile("sums-debug/job.json"))  # type: ignore[arg-type]
    assert {f"sums-debug/{name}.json" for name in ("versions", "processes", "events")} <= set(names)
    assert "sums-trainer-1-0" in {pod["metadata"]["name"] for pod in pods}
    assert job["status"]["phase"] == "Running"
    assert "exists: remove it" in align("debug", "sums", "-o", str(archive), code=1)
    # Without a dashboard `top` says so, and shows the rest.
    top = align("top", "sums", "--once")
    assert "no metrics: " in top and "trainer-0" in top
    align("suspend", "sums")
    align("wait", "sums", "--for", "Suspended", "--timeout", "60s")
    align("delete", "sums")
    assert "there is no job" in align("get", "sums", code=1)


def test_the_doctor_reports_a_missing_operator(align: Plugin, team: Team, tmp_path: Path) -> None:
    """The CRD and storage exist, and no operator runs."""
    report = align("doctor", "--kubeconfig", str(team.control_plane.kubeconfig), code=1)
    assert "ok       API server: https://" in report
    assert "ok       alignmentjobs.kubealign.dev: v1alpha1" in report
    assert f"ok       your rights in {team.namespace}: all that the commands need" in report
    assert "missing  operator: nobody runs jobs" in report
    assert "This machine" not in report


def test_a_read_only_user(team: Team, tmp_path: Path) -> None:
    rules = [
        {"apiGroups": ["kubealign.dev"], "resources": ["alignmentjobs"], "verbs": ["get", "list", "watch"]}
    ]
    token = account(team.control_plane, team.namespace, "reader", rules)
    reader = Plugin(kubeconfig(team.control_plane, tmp_path / "reader.kubeconfig", token), team.namespace)
    assert reader("list", "-o", "json").count('"items": []') == 1
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(rloo("sums")))
    assert "create alignmentjobs" in reader("submit", str(file), code=1)
    report = reader("doctor", "--kubeconfig", str(tmp_path / "reader.kubeconfig"), code=1)
    assert f"missing  your rights in {team.namespace}: you may not create alignmentjobs" in report
    assert "warning  operator, Redis, dashboard: " in report
