"""Each family in vLLM on a CPU: an exported model, a refit and a merged adapter, against transformers."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from kubealign.spec.sections.training import AdamW, Lora, Optimizer, Trainer
from kubealign_services.algorithms.offline.sft import CrossEntropyObjective
from kubealign_services.batch.packed import pack
from kubealign_services.training.contract import Head, UpdatePlan
from kubealign_services.training.torch_backend.backend import TorchTrainingBackend
from support.model_families import FAMILIES, ModelFamily, Oracle
from support.vllm_environment import ABSENT, VLLM_PYTHON

pytestmark = [pytest.mark.timeout(600), pytest.mark.skipif(bool(ABSENT), reason=ABSENT)]

PROGRAM = "from support.vllm_family import main; main()"
TESTS = Path(__file__).parents[2]
#: The first is longer than a window, and both responses leave it.
PROMPTS = [list(range(30, 41)), [77, 5, 9]]
#: Families of `make test`; `make test-full` has all.
FEW = ("qwen3_moe", "gemma3_text")


def trained(folder: Path, lora: Lora | None) -> TorchTrainingBackend:
    """Return a backend after three steps of SFT."""
    spec = Trainer(optimizer=Optimizer(adam_w=AdamW(learning_rate=1e-2)), lora=lora)
    backend = TorchTrainingBackend.create(folder, Head.LANGUAGE_MODEL, spec, total_updates=20)
    generator = torch.Generator().manual_seed(3)
    batch = pack([torch.randint(0, 256, (40,), generator=generator).tolist() for _ in range(4)], list("abcd"))
    batch.token_columns["loss_mask"] = (batch.positions > 1).to(torch.uint8)
    for step in range(3):
        backend.train_step(batch, CrossEntropyObjective(), UpdatePlan(1, 4, seed=step))
    return backend


def check(samples: list[dict[str, Any]], folder: Path) -> None:
    oracle = Oracle(folder)
    for prompt, sample in zip(PROMPTS, samples, strict=True):
        expected = oracle.logprobs(prompt + sample["tokens"])
        assert len(sample["tokens"]) == 24
        assert sample["whole"] == pytest.approx(expected, abs=1e-4)
        assert sample["drawn"] == pytest.approx(expected[len(prompt) - 1 :], abs=1e-4)


@pytest.mark.parametrize(
    "family",
    [
        pytest.param(family, id=name, marks=[] if name in FEW else [pytest.mark.full])
        for name, family in FAMILIES.items()
    ],
)
def test_family(family: ModelFamily, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(TESTS), prepend=os.pathsep)
    folder, memory = family.save(tmp_path / "model"), tmp_path / "memory"
    memory.mkdir()
    trained(folder, None).export(tmp_path / "exported")
    adapted = trained(folder, Lora(rank=4, alpha=16))
    adapted.export(tmp_path / "adapted")
    snapshot = adapted.adapter()
    assert snapshot is not None
    save_file({name: tensor.clone() for name, tensor in snapshot.tensors}, tmp_path / "adapter.safetensors")
    request = {
        "exported": tmp_path / "exported",
        "refit": folder / "model.safetensors",
        "adapter": tmp_path / "adapter.safetensors",
        "memory": memory,
        "answer": tmp_path / "answer.json",
    }
    asked = {name: str(path) for name, path in request.items()} | {
        "scale": snapshot.scale,
        "prompts": PROMPTS,
    }
    (tmp_path / "request.json").write_text(json.dumps(asked))
    ended = subprocess.run(
        [VLLM_PYTHON, "-c", PROGRAM, tmp_path / "request.json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=500,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout[-10_000:]
    answers = json.loads((tmp_path / "answer.json").read_text())
    check(answers["exported"], tmp_path / "exported")
    check(answers["refitted"], folder)
    check(answers["adapted"], tmp_path / "adapted")
