"""`kubealign run` before anything is started."""

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kubealign.cli.main import app
from kubealign.local.run_dir.status import Phase, RunStatus

JOB = """
apiVersion: kubealign.dev/v1alpha1
kind: AlignmentJob
metadata: {name: tiny}
spec:
  maxSteps: 10
  algorithm: {sft: {}}
  policy: {model: {job: {name: base}}}
  data: {demonstrations: {source: {path: rows.jsonl}, format: {text: {}}}}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "job.yaml"
    path.write_text(JOB)
    runs = tmp_path / "runs" / "base"
    runs.mkdir(parents=True)
    RunStatus(phase=Phase.SUCCEEDED, runner=1, started_at=0.0).write(runs / "status.json")
    return path


def listing(folder: Path) -> set[Path]:
    return set(folder.rglob("*"))


def test_a_dry_run_starts_and_writes_nothing_and_imports_little(file: Path) -> None:
    before = listing(file.parent)
    program = (
        "import sys; from kubealign.cli.main import app\n"
        "try: app()\n"
        "finally: print({'torch', 'grpc', 'redis', 'cryptography'} & set(sys.modules), file=sys.stderr)"
    )
    arguments = ["run", str(file), "--dry-run", "--runs-dir", str(file.parent / "runs")]
    ran = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False, timeout=60
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines()[0] == "tiny: sft, 10 steps, after base"
    assert ran.stderr.strip() == "set()"
    assert listing(file.parent) == before


def test_job_with_a_missing_dependency_is_rejected(file: Path) -> None:
    result = CliRunner().invoke(app, ["run", str(file), "--runs-dir", str(file.parent / "none")])
    assert result.exit_code == 3
    assert "run base first" in result.output.replace("\n", " ")
    assert not (file.parent / "none").exists()


def test_invalid_value_is_reported_with_its_path(file: Path) -> None:
    result = CliRunner().invoke(app, ["run", str(file), "--set", "spec.maxSteps=0"])
    assert result.exit_code == 3
    assert "spec.maxSteps" in result.output


def test_uncreatable_run_directory_is_reported(file: Path) -> None:
    in_the_way = file.parent / "a-file"
    in_the_way.write_text("")
    text = JOB.replace("{job: {name: base}}", "{path: /nowhere}")
    file.write_text(text)
    result = CliRunner().invoke(app, ["run", str(file), "--runs-dir", str(in_the_way)])
    assert result.exit_code == 1
    assert "the run directory cannot be used" in result.output
    assert "a-file" in result.output.replace("\n", "")
