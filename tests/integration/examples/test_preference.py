"""The example of preference methods: its files and commands, with a few steps."""

import math
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from support.doc_blocks import ROOT
from support.running import RunningJobs

EXAMPLE = ROOT / "examples" / "preference"
STEPS = 2
#: Jobs that also sample answers; the others skip this to save time.
SAMPLED = ("pref-dpo", "pref-kto")
#: Method -> cached share of the reference scores at each step.
KEPT = {"dpo": [0, 1], "ipo": [0, 1], "kto": [0, 1], "rpo": [0, 1], "orpo": None, "simpo": None}


@pytest.mark.timeout(300)
def test_the_jobs_run_and_the_reference_is_asked_once_for_each_row(tmp_path: Path) -> None:
    folder = tmp_path / "preference"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("data", "runs", "__pycache__"))
    subprocess.run([sys.executable, "make_data.py"], cwd=folder, check=True, timeout=60)
    options = ["--no-dashboard", "--set", f"pref-sft:spec.maxSteps={STEPS}"]
    for method in KEPT:
        kind, rows = ("unpaired", 128) if method == "kto" else ("preferences", 64)
        options += ["--set", f"pref-{method}:spec.maxSteps={STEPS}"]
        options += ["--set", f"pref-{method}:spec.data.{kind}.limit={rows}"]  # every step is an epoch
    jobs = list(yaml.safe_load_all((folder / "jobs.yaml").read_text()))
    for job in jobs:
        if job["metadata"]["name"] not in SAMPLED:
            del job["spec"]["rollout"], job["spec"]["validation"]["sampling"]
    del jobs[0]["spec"]["validation"]
    (folder / "jobs.yaml").write_text(yaml.safe_dump_all(jobs))
    with RunningJobs(folder / "jobs.yaml", folder / "runs", *options) as run:
        assert run.end(270) == 0, run.output[-4000:]
        for method, kept_shares in KEPT.items():
            steps = run.steps(f"pref-{method}").values()
            assert [line["step"] for line in steps] == [1, 2]
            assert all(math.isfinite(line["preference/loss"]) for line in steps)
            shares = [line.get("reference/kept_share") for line in steps]
            assert shares == (kept_shares or [None, None]), method
            (start, end) = [line for line in run.metrics(f"pref-{method}") if "val/margin" in line]
            assert {"val/accuracy", "val/loss", "val/chosen_logprob"} <= end.keys()
            assert ("val/in-order" in end) == (f"pref-{method}" in SAMPLED)
            if kept_shares:
                # The reference equals the policy, so the margin is only rounding.
                assert abs(start["val/margin"]) < 1e-4
            else:
                assert start["val/accuracy"] > 0
            assert (run.folder(f"pref-{method}") / "result" / "model.safetensors").is_file()
