"""The example of adapters: its files and commands, with a few steps."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from support.doc_blocks import ROOT
from support.running import RunningJobs

EXAMPLE = ROOT / "examples" / "lora"
JOBS = ("lora-base", "lora-sft", "lora-grpo", "lora-dpo")


def test_adapters_travel_alone_and_leave_the_base_as_it_was(tmp_path: Path) -> None:
    folder = tmp_path / "lora"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("data", "runs", "__pycache__"))
    subprocess.run([sys.executable, "make_data.py"], cwd=folder, check=True, timeout=60)
    fewer = [option for job in JOBS for option in ("--set", f"{job}:spec.maxSteps=2")]
    with RunningJobs(folder / "jobs.yaml", folder / "runs", "--no-dashboard", *fewer) as running:
        assert running.end(240) == 0, running.output[-4000:]

    def figures(job: str) -> list[dict[str, Any]]:
        lines = (folder / "runs" / job / "metrics.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    def weights(job: str) -> dict[str, Any]:
        return load_file(folder / "runs" / job / "result" / "model.safetensors")

    base, tuned = weights("lora-base"), weights("lora-sft")
    changed = {name for name, weight in tuned.items() if not weight.equal(base[name])}
    assert changed and all(name.endswith("_proj.weight") for name in changed)
    adapter = load_file(folder / "runs" / "lora-sft" / "result" / "adapter" / "adapter_model.safetensors")
    assert len(adapter) == 2 * len(changed)
    assert not (folder / "runs" / "lora-base" / "result" / "adapter").exists()

    # The policy is its own reference, so both are equal at first.
    first, second = figures("lora-grpo")
    assert first["kl/reference"] == 0 and second["kl/reference"] != 0
    # Both sampled versions were published, without the frozen weights.
    base_bytes = sum(weight.numel() * 4 for weight in base.values())
    assert second["refit/bytes"] < 0.25 * base_bytes
    assert not list((folder / "runs" / "lora-grpo" / "logs").glob("reference*"))
    steps = [line for line in figures("lora-dpo") if "preference/margin" in line]
    assert steps[0]["preference/margin"] == 0 and steps[1]["preference/margin"] != 0
    shards = (folder / "runs" / "lora-grpo" / "commits").glob("*/trainer/*.safetensors")
    assert all(".lora_" in name or name == "rng.cpu" for shard in shards for name in load_file(shard))
