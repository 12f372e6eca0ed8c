"""Commands of this machine: doctor, bench, dashboard."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from kubealign.bench.job import write_benchmark_job
from kubealign.bench.report import BenchmarkError, BenchmarkReport, comparability_warnings
from kubealign.client.errors import Forbidden, JobNotFound, KubealignError, Unavailable
from kubealign.diagnostics.doctor import cluster, machine
from kubealign.diagnostics.doctor.check_result import CheckResult, CheckStatus, missing, ok, warning
from kubealign.spec.loading.loader import load_jobs

Run = Callable[..., Result]
_RIGHTS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_CRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/alignmentjobs.kubealign.dev"


def workload(component: str, ready: int) -> dict[str, Any]:
    labels = {"app.kubernetes.io/component": component}
    metadata = {"name": f"kubealign-{component}", "namespace": "kubealign-system", "labels": labels}
    return {"metadata": metadata, "spec": {"replicas": 2}, "status": {"readyReplicas": ready}}


class Answers:
    """Responses of an API server by path; exceptions are raised."""

    server = "https://cluster"

    def __init__(self, **changed: Any) -> None:
        self.denied: set[tuple[str, str]] = set()
        self.held: dict[str, Any] = {
            "/version": {"gitVersion": "v1.35.0"},
            "/apis/kubealign.dev": {"versions": [{"version": "v1alpha1"}]},
            _CRD: {"metadata": {"labels": {"app.kubernetes.io/version": "0.1.0"}}},
            "/apis/apps/v1/deployments": {"items": [workload("operator", 2), workload("dashboard", 1)]},
            "/apis/apps/v1/statefulsets": {"items": [workload("redis", 1)]},
            "/apis/storage.k8s.io/v1/storageclasses": {
                "items": [
                    {
                        "metadata": {
                            "name": "fast",
                            "annotations": {"storageclass.kubernetes.io/is-default-class": "true"},
                        }
                    }
                ]
            },
        }

    async def get(self, path: str, query: Any = None) -> dict[str, Any]:
        answer = self.held[path]
        if isinstance(answer, KubealignError):
            raise answer
        return dict(answer)

    list = get

    async def create(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        assert path == _RIGHTS
        requests = body["spec"]["resourceAttributes"]
        return {"status": {"allowed": (requests["verb"], requests["resource"]) not in self.denied}}


async def check_cluster(api: Answers) -> dict[str, CheckResult]:
    return {finding.what: finding async for finding in cluster.run_checks(api, "team")}  # type: ignore[arg-type]


async def test_healthy_cluster_has_no_problems() -> None:
    findings = await check_cluster(Answers())
    assert {finding.health for finding in findings.values()} == {CheckStatus.OK}
    assert list(findings) == [
        "API server",
        "alignmentjobs.kubealign.dev",
        "your rights in team",
        "operator",
        "Redis",
        "dashboard",
        "storage",
    ]
    assert findings["storage"].detail == "StorageClass fast; fast is the default"


@pytest.mark.parametrize(
    ("path", "answer", "what", "health", "expected_text"),
    [
        ("/version", Unavailable("no route"), "API server", CheckStatus.MISSING, "no route"),
        (
            "/apis/kubealign.dev",
            JobNotFound("404"),
            "alignmentjobs.kubealign.dev",
            CheckStatus.MISSING,
            "helm install",
        ),
        (
            "/apis/kubealign.dev",
            {"versions": [{"version": "v1"}]},
            "alignmentjobs.kubealign.dev",
            CheckStatus.MISSING,
            "served as v1",
        ),
        (
            _CRD,
            {"metadata": {"labels": {"app.kubernetes.io/version": "9"}}},
            "alignmentjobs.kubealign.dev",
            CheckStatus.WARNING,
            "release 9",
        ),
        (_CRD, Forbidden("no"), "alignmentjobs.kubealign.dev", CheckStatus.OK, "v1alpha1"),
        ("/apis/apps/v1/deployments", {"items": []}, "operator", CheckStatus.MISSING, "nobody runs jobs"),
        (
            "/apis/apps/v1/deployments",
            {"items": [workload("operator", 0)]},
            "operator",
            CheckStatus.MISSING,
            "none of 2",
        ),
        ("/apis/apps/v1/statefulsets", {"items": []}, "Redis", CheckStatus.WARNING, "without metrics"),
        (
            "/apis/apps/v1/statefulsets",
            Unavailable("x"),
            "operator, Redis, dashboard",
            CheckStatus.WARNING,
            "x",
        ),
        (
            "/apis/storage.k8s.io/v1/storageclasses",
            {"items": []},
            "storage",
            CheckStatus.WARNING,
            "no StorageClass",
        ),
    ],
)
async def test_missing_cluster_prerequisites(
    path: str, answer: Any, what: str, health: CheckStatus, expected_text: str
) -> None:
    api = Answers()
    api.held[path] = answer
    finding = (await check_cluster(api))[what]
    assert finding.health is health
    assert expected_text in f"{finding.detail} {finding.remedy}"
    assert bool(finding.remedy) is (health is not CheckStatus.OK)


async def test_missing_permissions() -> None:
    api = Answers()
    api.denied = {("delete", "alignmentjobs")}
    finding = (await check_cluster(api))["your rights in team"]
    assert (finding.health, finding.detail) == (CheckStatus.WARNING, "you may not delete alignmentjobs")
    api.denied.add(("create", "alignmentjobs"))
    finding = (await check_cluster(api))["your rights in team"]
    assert finding.health is CheckStatus.MISSING
    assert "create alignmentjobs" in finding.detail and "RoleBinding" in finding.remedy


def test_machine_findings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_check_gpus", lambda: ok("torch", "not imported by this test"))
    findings = {finding.what: finding for finding in machine.run_checks(tmp_path / "runs")}
    # This machine can run jobs, as other tests show.
    assert [finding for finding in findings.values() if finding.health is CheckStatus.MISSING] == []
    assert findings["Python"].health is CheckStatus.OK
    monkeypatch.setattr(machine, "find_spec", lambda name: None if name in ("torch", "wandb") else object())
    findings = {finding.what: finding for finding in machine.run_checks(tmp_path / "runs")}
    assert "torch" not in findings
    lacks = findings["packages [services]"]
    assert (lacks.health, lacks.detail) == (CheckStatus.MISSING, "without torch")
    assert lacks.remedy == "pip install 'kubealign[services]'"
    assert findings["packages [trackers]"].health is CheckStatus.WARNING


def test_gpu_needs_a_c_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(machine, "_GPUS", 'print("2.15.0", "NVIDIA H200", "NVIDIA H200", sep="\\n")')
    monkeypatch.delenv("CC", raising=False)
    (tmp_path / "gcc").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert machine._check_gpus() == ok("torch", "2.15.0, 2 x NVIDIA H200")
    (tmp_path / "gcc").unlink()
    finding = machine._check_gpus()
    assert (finding.health, finding.detail) == (
        CheckStatus.WARNING,
        "2.15.0, 2 x NVIDIA H200, no C compiler",
    )


def test_doctor_prints_findings_and_exits_with_its_code(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    results = [ok("a", "fine"), warning("b", "little \x1b[2J", "make more")]
    monkeypatch.setattr(machine, "run_checks", lambda folder: iter(results))
    done = run("doctor", "--local")
    assert (done.exit_code, done.stdout) == (
        0,
        "This machine\n  ok       a: fine\n  warning  b: little \\x1b[2J\n           -> make more\n",
    )
    results.append(missing("c", "none", "get one"))
    assert run("doctor", "--local").exit_code == 1
    assert run("doctor", "--local", "--context", "x").exit_code == 2


def test_doctor_without_a_cluster(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(machine, "run_checks", lambda folder: iter(()))
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    done = run("doctor")
    assert done.exit_code == 0 and "warning  kubeconfig: no cluster was found" in done.stdout
    done = run("doctor", "--kubeconfig", str(tmp_path / "none"))
    assert done.exit_code == 1 and "This machine" not in done.stdout
    assert f"missing  kubeconfig: there is no kubeconfig {tmp_path / 'none'}" in done.stdout


def lines(*seconds: float) -> list[dict[str, Any]]:
    return [
        {"step": step, "seconds/step": value, "seconds/train": value / 2, "tokens_per_second": 100 / value}
        for step, value in enumerate(seconds, 1)
    ]


def test_benchmark_excludes_the_warm_up(tmp_path: Path) -> None:
    report = BenchmarkReport.from_metrics(
        {"seed": 1}, [*lines(9.0, 1.0, 3.0), {"step": 3, "val/loss": 1.0}], warmup=1
    )
    assert report.steps == 2
    step = report.figures["seconds/step"]
    assert (step.mean, round(step.deviation, 6)) == (2.0, round(2**0.5, 6))
    assert report.figures["seconds/train"].mean == 1.0
    assert "seconds/generate" not in report.figures
    path = tmp_path / "earlier.json"
    path.write_text(json.dumps(report.to_dict()))
    assert BenchmarkReport.read(path) == report
    with pytest.raises(BenchmarkError, match="only 1 steps were measured"):
        BenchmarkReport.from_metrics({}, lines(1.0, 2.0), warmup=1)


def test_different_measurement_conditions_are_reported(tmp_path: Path) -> None:
    report = BenchmarkReport.from_metrics({"data": {"path": "/a/rows.jsonl"}}, lines(1.0, 2.0), warmup=0)
    assert comparability_warnings(report, None) == []
    assert (
        comparability_warnings(
            report,
            BenchmarkReport.from_metrics({"data": {"path": "/b/rows.jsonl"}}, lines(2.0, 3.0), warmup=0),
        )
        == []
    )
    second = BenchmarkReport.from_metrics({"data": {"path": "/a/more.jsonl"}}, lines(1.0, 2.0, 3.0), warmup=0)
    assert comparability_warnings(report, second) == ["another job was measured then", "then it was 3 steps"]
    path = tmp_path / "no.json"
    path.write_text("[]")
    with pytest.raises(BenchmarkError, match="is no output of kubealign bench"):
        BenchmarkReport.read(path)
    with pytest.raises(BenchmarkError, match="cannot be read"):
        BenchmarkReport.read(tmp_path / "none.json")


def test_benchmark_job_is_valid_and_deterministic(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    for folder in (first, second):
        folder.mkdir()
    (job,) = load_jobs(write_benchmark_job(first))
    write_benchmark_job(second)
    assert job.spec.algorithm.member == "ppo"
    assert {p.name: p.read_bytes() for p in first.iterdir()} == {
        p.name: p.read_bytes() for p in second.iterdir()
    }


def test_bench_requires_one_valid_job(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("kind: AlignmentJob\n")
    assert run("bench", str(path)).exit_code == 3
    done = run("bench", "--compare", str(tmp_path / "none"))
    assert done.exit_code == 1 and "cannot be read" in done.stderr


def test_missing_dashboard_package_is_named(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name!r}", name="fastapi")

    monkeypatch.setattr("kubealign.cli.commands.machine.dashboard.importlib.import_module", absent)
    done = run("dashboard", "--no-browser")
    assert (done.exit_code, done.stderr) == (
        1,
        "the dashboard needs fastapi, which is not installed: pip install 'kubealign[dashboard]'\n",
    )
