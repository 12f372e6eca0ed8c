"""The example package: built, installed next to kubealign, and used by its own jobs with a few steps."""

import csv
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from support.doc_blocks import ROOT
from support.running import RunningJobs
from support.tiny_jobs import online_job, write_jobs

EXAMPLE = ROOT / "examples" / "plugin"
STEPS = {"quantile-sft": 4, "quantile": 3}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of packages with the installed example."""
    folder = tmp_path_factory.mktemp("packages")
    source = folder / "source"
    shutil.copytree(EXAMPLE, source, ignore=shutil.ignore_patterns("data", "runs", "__pycache__"))
    command = [str(Path(sys.executable).with_name("uv")), "pip", "install", "--quiet", "--offline"]
    command += ["--no-cache", "--no-deps", "--no-build-isolation", "--python", sys.executable]
    subprocess.run(
        [*command, "--target", str(folder / "site"), str(source)], check=True, timeout=200, cwd=folder
    )
    return folder / "site"


def test_algorithm_reward_and_tracker_work(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "plugin"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("data", "runs", "src", "__pycache__"))
    subprocess.run([sys.executable, "make_data.py"], cwd=folder, check=True, timeout=60)
    monkeypatch.setenv("PYTHONPATH", str(site), prepend=os.pathsep)
    fewer = [option for job, steps in STEPS.items() for option in ("--set", f"{job}:spec.maxSteps={steps}")]
    with RunningJobs(folder / "jobs.yaml", folder / "runs", "--no-dashboard", *fewer) as running:
        assert running.end(240) == 0, running.output[-4000:]
    path = folder / "runs" / "quantile" / "trackers" / "table" / "figures.csv"
    lines = list(csv.DictReader(path.read_text().splitlines()))
    assert [(line["job"], line["step"]) for line in lines] == [("quantile", str(i)) for i in (1, 2, 3)]
    assert all(0 <= float(line["reward/mean"]) <= 1 for line in lines)


def test_parameters_that_the_package_refuses_fail_the_job_before_it_begins(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(site), prepend=os.pathsep)
    algorithm = {"custom": {"name": "quantile", "parameters": {"quantile": 1.5}, "samplesPerPrompt": 4}}
    file = write_jobs(tmp_path, online_job(tmp_path, "refused", algorithm))
    with RunningJobs(file, tmp_path / "runs", "--no-dashboard") as running:
        assert running.end(240) != 0
        message = "custom.parameters.quantile: Input should be less than or equal to 1 (it holds 1.5)"
        assert message in running.output


def test_the_algorithm_is_short_and_named_in_the_package_alone() -> None:
    source = (EXAMPLE / "src" / "kubealign_quantile" / "algorithm.py").read_text()
    assert len(source.splitlines()) < 60
    points = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]["entry-points"]
    assert sorted(points) == ["kubealign.algorithms", "kubealign.rewards", "kubealign.trackers"]
