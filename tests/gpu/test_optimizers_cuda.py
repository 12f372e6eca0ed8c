"""Optimisers on a GPU: agreement with a CPU, exact restarts after an offload, allocated memory."""

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from kubealign.planning.machine import Device
from kubealign.planning.memory.torch_optimizer import torch_optimizer_memory
from kubealign.planning.model import parameter_counts
from kubealign.planning.model.shape import parse_model_shape
from kubealign.planning.model.shape_sources import read_config
from kubealign.spec.sections.training import Backend, Optimizer, TorchBackendSpec, Trainer
from kubealign_services.batch.packed import Batch, pack
from kubealign_services.training.contract import Head, UpdatePlan
from kubealign_services.training.torch_backend import backend as torch_backend
from support.mean_negative_logprob import MeanNegativeLogprob

pytestmark = pytest.mark.timeout(240)

Figure = Callable[[str], None]
ADAMW: dict[str, Any] = {"learningRate": 1e-4, "epsilon": 1e-6}
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "adamw": {"adamW": ADAMW},
    "blockwise": {"adamW": {**ADAMW, "states": "Blockwise8Bit"}},
    "muon": {"adamW": ADAMW, "muon": {}},
    "host": {"adamW": ADAMW, "device": "Host"},
    "all on host": {"adamW": {**ADAMW, "states": "Blockwise8Bit"}, "muon": {}, "device": "Host"},
}


def trainer(name: str) -> Trainer:
    return Trainer(
        backend=Backend(torch=TorchBackendSpec(microbatch_tokens=2048)),
        optimizer=Optimizer.model_validate(OPTIMIZERS[name]),
    )


def create(folder: Path, name: str) -> torch_backend.TorchTrainingBackend:
    return torch_backend.TorchTrainingBackend.create(folder, Head.LANGUAGE_MODEL, trainer(name), 20)


def batch() -> Batch:
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(3, 8000, (8, 128), generator=generator)
    return pack(tokens.tolist(), [str(i) for i in range(8)])


def steps(backend: torch_backend.TorchTrainingBackend, seeds: range) -> list[float]:
    plan = [UpdatePlan(1, 8, seed=seed) for seed in seeds]
    return [backend.train_step(batch(), MeanNegativeLogprob(), each)["loss"] for each in plan]


@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_steps_equal_cpu_steps(
    name: str, folder: Path, figure: Figure, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    on_gpu = steps(create(folder, name), range(4))
    monkeypatch.setattr(torch_backend, "compute_device", lambda: torch.device("cpu"))
    on_cpu = steps(create(folder, name), range(4))
    figure(f"losses {[round(loss, 4) for loss in on_gpu]}, on the CPU {[round(loss, 4) for loss in on_cpu]}")
    assert on_gpu == pytest.approx(on_cpu, rel=2e-3) and on_gpu[-1] < on_gpu[0]


@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_a_resumed_run_equals_an_uninterrupted_one_after_an_offload(
    name: str, folder: Path, tmp_path: Path
) -> None:
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        straight = create(folder, name)
        steps(straight, range(2))
        straight.save(tmp_path)
        straight.offload()
        straight.reload()
        expected = steps(straight, range(2, 4))
        resumed = create(folder, name)
        resumed.load(tmp_path)
        assert steps(resumed, range(2, 4)) == expected
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_the_state_on_the_device_is_the_planned_one(name: str, folder: Path, figure: Figure) -> None:
    shape = parse_model_shape(read_config(folder / "config.json"), "model")
    weights = parameter_counts.total(shape)
    planned = 4 * weights + torch_optimizer_memory(shape, trainer(name), weights, None, Device.GPU).device
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    backend = create(folder, name)
    steps(backend, range(2))
    gc.collect()
    allocated = torch.cuda.memory_allocated() - before
    figure(f"weights and state: planned {planned >> 20} MiB, allocated {allocated >> 20}")
    assert allocated == pytest.approx(planned, rel=0.1)
