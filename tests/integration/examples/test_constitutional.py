"""The example of constitutional AI: its files and commands, with a few steps."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from support.doc_blocks import ROOT
from support.running import RunningJobs

EXAMPLE = ROOT / "examples" / "constitutional"
#: Jobs whose results the comparison needs.
UNTIL_COMPARED = ("taught", "revised", "sft", "compared")
JOBS = (*UNTIL_COMPARED, "rm", "ppo")


@pytest.mark.parametrize(
    "jobs",
    [
        pytest.param(UNTIL_COMPARED, id="until the comparison"),
        pytest.param(JOBS, id="all", marks=pytest.mark.full),
    ],
)
def test_the_jobs_run_one_after_another(tmp_path: Path, jobs: tuple[str, ...]) -> None:
    folder = tmp_path / "constitutional"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("data", "runs", "__pycache__"))
    make = [sys.executable, "make_data.py", "--out", "data"]
    subprocess.run(make, cwd=folder, check=True, timeout=60)
    file = folder / "jobs.yaml"
    documents = {job["metadata"]["name"]: job for job in yaml.safe_load_all(file.read_text())}
    assert documents.keys() == {f"constitutional-{job}" for job in JOBS}
    file.write_text(yaml.safe_dump_all([documents[f"constitutional-{job}"] for job in jobs], sort_keys=False))
    changes = [f"constitutional-{job}:spec.maxSteps={12 if job == 'taught' else 1}" for job in jobs]
    options = [option for change in changes for option in ("--set", change)]
    data = f"DATA={folder / 'data'}"
    with RunningJobs(file, folder / "runs", "--no-dashboard", "--param", data, *options) as running:
        assert running.end(240) == 0, running.output[-4000:]
        revised = running.steps("constitutional-revised")[1]
        compared = running.steps("constitutional-compared")[1]
        ends = {job: max(running.steps(f"constitutional-{job}")) for job in jobs}
    assert ends == dict.fromkeys(jobs, 1) | {"taught": 12}
    assert 0 < revised["revision/changed_share"] <= 1 and revised["data/rows"] == 200
    assert 0 <= compared["comparison/confidence"] <= 1 and 0 < compared["comparison/first_share"] < 1
    text = (folder / "runs" / "constitutional-compared" / "result" / "data.jsonl").read_text()
    for row in (json.loads(line) for line in text.splitlines()):
        assert row["chosen"] != row["rejected"] and row["principle"] == "calm"
        assert row["chosen_rating"] + row["rejected_rating"] == 1 and row["chosen_rating"] > 0.5
