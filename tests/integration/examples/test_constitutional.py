"""The example of constitutional AI: its files and commands, with a few steps."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

from support.doc_blocks import ROOT
from support.running import RunningJobs

EXAMPLE = ROOT / "examples" / "constitutional"
JOBS = ("taught", "revised", "sft", "compared", "rm", "ppo")


def test_the_jobs_run_one_after_another(tmp_path: Path) -> None:
    folder = tmp_path / "constitutional"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("data", "runs", "__pycache__"))
    make = [sys.executable, "make_data.py", "--out", "data"]
    subprocess.run(make, cwd=folder, check=True, timeout=60)
    changes = [f"constitutional-{job}:spec.maxSteps={12 if job == 'taught' else 1}" for job in JOBS]
    options = [option for change in changes for option in ("--set", change)]
    data = f"DATA={folder / 'data'}"
    with RunningJobs(
        folder / "jobs.yaml", folder / "runs", "--no-dashboard", "--param", data, *options
    ) as running:
        assert running.end(240) == 0, running.output[-4000:]
        revised = running.steps("constitutional-revised")[1]
        compared = running.steps("constitutional-compared")[1]
        ends = {job: max(running.steps(f"constitutional-{job}")) for job in JOBS}
    assert ends == dict.fromkeys(JOBS, 1) | {"taught": 12}
    assert 0 < revised["revision/changed_share"] <= 1 and revised["data/rows"] == 200
    assert 0 <= compared["comparison/confidence"] <= 1 and 0 < compared["comparison/first_share"] < 1
    text = (folder / "runs" / "constitutional-compared" / "result" / "data.jsonl").read_text()
    for row in (json.loads(line) for line in text.splitlines()):
        assert row["chosen"] != row["rejected"] and row["principle"] == "calm"
        assert row["chosen_rating"] + row["rejected_rating"] == 1 and row["chosen_rating"] > 0.5
