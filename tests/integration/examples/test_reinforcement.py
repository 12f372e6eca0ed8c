"""The example of the online methods, with three steps: the jobs whose parts differ most. The other methods
learn in tests/learning."""

import shutil
import subprocess
import sys
from pathlib import Path

import yaml

from support.doc_blocks import ROOT
from support.running import RunningJobs

EXAMPLE = ROOT / "examples" / "reinforcement"
#: Greedy baselines; dropped and resampled groups with a length penalty; stale samples.
JOBS = ("toy-start", "toy-remax", "toy-dapo", "toy-async")


def test_jobs_run_and_report_their_own_metrics(tmp_path: Path) -> None:
    folder = tmp_path / "reinforcement"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("data", "runs", "__pycache__"))
    subprocess.run([sys.executable, "make_data.py"], cwd=folder, check=True, timeout=60)
    jobs = [
        job
        for job in yaml.safe_load_all((folder / "jobs.yaml").read_text())
        if job["metadata"]["name"] in JOBS
    ]
    (folder / "few.yaml").write_text(yaml.safe_dump_all(jobs))
    steps = ("--set", "spec.maxSteps=3")
    with RunningJobs(folder / "few.yaml", folder / "runs", "--no-dashboard", *steps) as running:
        assert running.end(240) == 0, running.output[-4000:]
        remax, dapo, behind = (running.steps(name) for name in JOBS[1:])
    assert remax[3]["batch/sequences"] == 144, "the greedy responses are not learned"
    assert "importance/mean" not in remax[3]
    assert dapo[3]["reward/constant_groups"] == 0 < dapo[3]["data/uninformative_groups"]
    assert dapo[3]["reward/overlong_penalty"] > 0
    assert behind[3]["rollout/staleness_max"] > 0
    assert behind[3]["policy/behaviour_kl"] > 0 and 0 < behind[3]["importance/mean"] < 2
