"""The example of rounds: its files and commands, with a few steps."""

import shutil
import subprocess
import sys
from pathlib import Path

from support.doc_blocks import ROOT
from support.running import RunningJobs

EXAMPLE = ROOT / "examples" / "rounds"
#: Steps per job; rounds-spin has one step more than a round.
STEPS = {"rounds-start": 20, "rounds-spin": 9, "rounds-rejection-sampling": 1, "rounds-self-rewarding": 1}
LESS = (
    "rounds-rejection-sampling:spec.algorithm.rejectionSampling.minimumReward=0.0",
    "rounds-self-rewarding:spec.algorithm.selfRewarding.judge.pattern=([0-3])",
)


def test_the_jobs_run_and_begin_their_rounds(tmp_path: Path) -> None:
    folder = tmp_path / "rounds"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("data", "runs", "__pycache__"))
    make = [sys.executable, "make_data.py", "--out", "data"]
    subprocess.run(make, cwd=folder, check=True, timeout=60)
    changes = [*(f"{job}:spec.maxSteps={steps}" for job, steps in STEPS.items()), *LESS]
    options = [option for change in changes for option in ("--set", change)]
    data = f"DATA={folder / 'data'}"
    with RunningJobs(
        folder / "jobs.yaml", folder / "runs", "--no-dashboard", "--param", data, *options
    ) as running:
        assert running.end(240) == 0, running.output[-4000:]
        spin = running.steps("rounds-spin")
        best = running.steps("rounds-rejection-sampling")[1]
        judged = running.steps("rounds-self-rewarding")[1]
    assert [spin[step]["round/number"] for step in (1, 8, 9)] == [1, 1, 2]
    assert 0 <= spin[1]["round/alike_share"] <= 1 and "round/alike_share" not in spin[8]
    assert best["round/chosen_reward"] >= best["round/reward_mean"]
    assert judged["round/chosen_reward"] > judged["round/rejected_reward"]
    assert judged["round/unparsed_share"] < 1 and judged["seconds/judge"] > 0
    for job in STEPS:
        assert (folder / "runs" / job / "result" / "model.safetensors").is_file()
        assert (folder / "runs" / job / "rounds" / "round-000001-fence-1").is_file() == (
            job != "rounds-start"
        )
