"""The example of distillation: its files and commands, with a few steps."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

from support.doc_blocks import ROOT
from support.running import RunningJobs

EXAMPLE = ROOT / "examples" / "distillation"
STEPS = {"sums-teacher": 4, "sums-student": 4, "sums-alone": 2, "sums-on-policy": 3}


def test_the_jobs_run_and_the_teacher_is_asked_once_for_each_row(tmp_path: Path) -> None:
    folder = tmp_path / "distillation"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("data", "runs", "__pycache__"))
    subprocess.run([sys.executable, "make_data.py"], cwd=folder, check=True, timeout=60)
    fewer = [option for job, steps in STEPS.items() for option in ("--set", f"{job}:spec.maxSteps={steps}")]
    with RunningJobs(folder / "jobs.yaml", folder / "runs", "--no-dashboard", *fewer) as running:
        assert running.end(240) == 0, running.output[-4000:]
        on_policy = running.steps("sums-on-policy")
        figures = [
            json.loads(line)
            for line in (folder / "runs" / "sums-student" / "metrics.jsonl").read_text().splitlines()
        ]
    steps = [line for line in figures if "distillation/loss" in line]
    assert [line["step"] for line in steps] == [1, 2, 3, 4]
    # Each step contains all rows: the first step requests all of them, later steps none.
    assert [line["teacher/kept_share"] for line in steps] == [0, 1, 1, 1]
    assert all(line["distillation/kl"] > 0 for line in steps)
    assert 0 < steps[0]["distillation/teacher_mass"] <= 1
    assert "val/right" in figures[-1]
    assert (folder / "runs" / "sums-student" / "result" / "model.safetensors").is_file()
    # The policy's own samples, scored by the teacher alone.
    assert sorted(on_policy) == [1, 2, 3]
    assert all(line["kl/reference_sequence"] > 0 and line["reward/mean"] == 0 for line in on_policy.values())
