"""The example of a pretrained model: its files and commands, with two steps."""

import math
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from support.doc_blocks import ROOT
from support.running import RunningJobs
from support.smollm2 import FILE, needs_smollm2

EXAMPLE = ROOT / "examples" / "smollm2"
STEPS = 2


def answer(folder: Path, question: str) -> str:
    """Return the model's most probable answer, by transformers."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    message = {"role": "user", "content": question}
    prompt = tokenizer.apply_chat_template(
        [message], add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    with torch.no_grad():
        ids = model.generate(**prompt, max_new_tokens=16, do_sample=False)
    return str(tokenizer.decode(ids[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True))


@needs_smollm2
@pytest.mark.full
@pytest.mark.timeout(1200)
def test_a_pretrained_model_is_trained_and_still_answers(tmp_path: Path) -> None:
    folder = tmp_path / "smollm2"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("data", "model", "runs", "__pycache__"))
    for command in (["make_model.py", str(FILE)], ["make_data.py"]):
        subprocess.run([sys.executable, *command], cwd=folder, check=True, timeout=300)
    assert answer(folder / "model", "What is the capital of France?") == "The capital of France is Paris."
    options = (
        "--no-dashboard",
        "--param",
        f"STEPS={STEPS}",
        "--param",
        "SAMPLES=2",
        "--param",
        "MODEL=model",
    )
    with RunningJobs(folder / "jobs.yaml", folder / "runs", *options) as running:
        assert running.end(800) == 0, running.output[-4000:]
        steps = running.steps("smollm2-grpo")
        result = running.folder("smollm2-grpo") / "result"
    assert sorted(steps) == list(range(1, STEPS + 1))
    for step in steps.values():
        assert all(math.isfinite(value) for value in step.values())
        assert step["rollout/logprob_gap_max"] < 2e-3
        assert 0 < step["response/length"] <= 32
    assert answer(result, "What is the capital of France?") == "The capital of France is Paris."
