"""The torch backend on a GPU: agreement with a CPU, bf16, memory against the plan, released memory."""

import gc
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from kubealign.planning.machine import CUDA_CONTEXT_BYTES, Device
from kubealign.planning.memory.trainer import TrainedModel, trainer_memory
from kubealign.planning.model.shape import parse_model_shape
from kubealign.planning.model.shape_sources import read_config
from kubealign.planning.workload import Workload
from kubealign.spec.sections.precision import Precision
from kubealign.spec.sections.training import AdamW, Backend, Optimizer, TorchBackendSpec, Trainer
from kubealign_services.batch.packed import Batch, pack
from kubealign_services.training.contract import Head, UpdatePlan
from kubealign_services.training.torch_backend import backend as torch_backend
from kubealign_services.training.torch_backend.frozen_model import FrozenTorchModel
from support.mean_negative_logprob import MeanNegativeLogprob

pytestmark = pytest.mark.timeout(120)

Figure = Callable[[str], None]
SEQUENCES, LENGTH = 16, 256
WORK = Workload(prompt=1, response=LENGTH - 1, sequences=SEQUENCES, epochs=1, updates=1)


@pytest.fixture
def allocated_before() -> int:
    """Free what earlier tests left, and return the bytes that are still allocated on the device."""
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    return torch.cuda.memory_allocated()


def spec(precision: Precision) -> Trainer:
    return Trainer(
        backend=Backend(torch=TorchBackendSpec(precision=precision, microbatch_tokens=2048)),
        optimizer=Optimizer(adam_w=AdamW(learning_rate=1e-4)),
    )


def batch() -> Batch:
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(3, 8000, (SEQUENCES, LENGTH), generator=generator)
    return pack(tokens.tolist(), [str(i) for i in range(SEQUENCES)])


def stepped(folder: Path, precision: Precision, steps: int = 3) -> list[dict[str, float]]:
    backend = torch_backend.TorchTrainingBackend.create(folder, Head.LANGUAGE_MODEL, spec(precision), steps)
    plan = UpdatePlan(1, SEQUENCES, seed=1)
    return [backend.train_step(batch(), MeanNegativeLogprob(), plan) for _ in range(steps)]


def test_three_steps_equal_cpu_steps(folder: Path, figure: Figure, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    on_gpu = stepped(folder, Precision.FLOAT32)
    monkeypatch.setattr(torch_backend, "compute_device", lambda: torch.device("cpu"))
    on_cpu = stepped(folder, Precision.FLOAT32)
    gap = max(abs(a["loss"] - b["loss"]) for a, b in zip(on_gpu, on_cpu, strict=True))
    figure(f"largest difference of a loss {gap:.2e}")
    for a, b in zip(on_gpu, on_cpu, strict=True):
        assert a["loss"] == pytest.approx(b["loss"], rel=1e-4)
        assert a["gradient_norm"] == pytest.approx(b["gradient_norm"], rel=1e-3)


def test_bf16_learns_like_fp32(folder: Path, figure: Figure) -> None:
    wide = stepped(folder, Precision.FLOAT32)
    narrow = stepped(folder, Precision.BFLOAT16)
    figure(f"losses fp32 {[round(s['loss'], 4) for s in wide]}, bf16 {[round(s['loss'], 4) for s in narrow]}")
    for a, b in zip(narrow, wide, strict=True):
        assert a["loss"] == pytest.approx(b["loss"], rel=2e-2)


@pytest.mark.parametrize("precision", list(Precision))
def test_plan_is_within_a_tenth_of_allocated_memory(
    folder: Path, figure: Figure, allocated_before: int, precision: Precision
) -> None:
    shape = parse_model_shape(read_config(folder / "config.json"), "model")
    moment = trainer_memory(TrainedModel(shape, spec(precision), WORK, Device.GPU))
    started = time.monotonic()
    stepped(folder, precision)
    took = torch.cuda.max_memory_allocated() - allocated_before
    planned = moment.total - CUDA_CONTEXT_BYTES
    tokens = 3 * SEQUENCES * LENGTH / (time.monotonic() - started)
    free, total = torch.cuda.mem_get_info()
    reserved = torch.cuda.memory_reserved()
    figure(
        f"planned {planned >> 20} MiB, allocated {took >> 20}, reserved {reserved >> 20}, "
        f"{total - free >> 20} of the device in use; {tokens:.0f} tokens a second"
    )
    assert took == pytest.approx(planned, rel=0.1)


def test_idle_reference_releases_its_memory(folder: Path, figure: Figure, allocated_before: int) -> None:
    model = FrozenTorchModel.load(folder, Head.LANGUAGE_MODEL, Precision.BFLOAT16, 2048)
    awake = torch.cuda.memory_allocated() - allocated_before
    expected: Any = model.forward(batch(), frozenset({"logprobs"}))["logprobs"]
    model.offload()
    resting = torch.cuda.memory_allocated() - allocated_before
    figure(f"awake {awake >> 20} MiB, resting {resting >> 20}")
    assert awake > 1 << 27 and resting < awake / 10
    assert torch.equal(model.forward(batch(), frozenset({"logprobs"}))["logprobs"], expected)
