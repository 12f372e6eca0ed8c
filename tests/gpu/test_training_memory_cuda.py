"""Offloaded activations and a base in NF4 on a GPU: the same results, and the memory of the plan."""

import gc
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from kubealign.planning.machine import CUDA_CONTEXT_BYTES, Device
from kubealign.planning.memory.trainer import TrainedModel, trainer_memory
from kubealign.planning.model.shape import parse_model_shape
from kubealign.planning.model.shape_sources import read_config
from kubealign.planning.workload import Workload
from kubealign.spec.sections.precision import Precision
from kubealign.spec.sections.training import (
    AdamW,
    Backend,
    BaseQuantization,
    Lora,
    Nf4Quantization,
    Optimizer,
    TorchBackendSpec,
    Trainer,
)
from kubealign_services.batch.packed import Batch, pack
from kubealign_services.roles.rollout.weights import read_folder_weights
from kubealign_services.training.contract import Head, UpdatePlan
from kubealign_services.training.torch_backend import backend as torch_backend
from kubealign_services.training.torch_backend.backend import TorchTrainingBackend
from support.mean_negative_logprob import MeanNegativeLogprob

pytestmark = pytest.mark.timeout(240)

Figure = Callable[[str], None]
SEQUENCES, LENGTH = 16, 256
WORK = Workload(prompt=1, response=LENGTH - 1, sequences=SEQUENCES, epochs=1, updates=1)
LORA = Lora(rank=8, quantization=BaseQuantization(nf4=Nf4Quantization()))


def spec(lora: Lora | None, precision: Precision = Precision.FLOAT32, offload: bool = False) -> Trainer:
    return Trainer(
        backend=Backend(
            torch=TorchBackendSpec(precision=precision, microbatch_tokens=4096, activation_offload=offload)
        ),
        optimizer=Optimizer(adam_w=AdamW(learning_rate=1e-4)),
        lora=lora,
    )


def batch() -> Batch:
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(3, 8000, (SEQUENCES, LENGTH), generator=generator)
    return pack(tokens.tolist(), [str(i) for i in range(SEQUENCES)])


def step(backend: TorchTrainingBackend, steps: int = 3) -> list[dict[str, float]]:
    plan = UpdatePlan(1, SEQUENCES, seed=1)
    return [backend.train_step(batch(), MeanNegativeLogprob(), plan) for _ in range(steps)]


def measure(folder: Path, trainer: Trainer) -> tuple[list[dict[str, float]], int]:
    """Return the metrics of three steps of a new backend, and the peak of the allocated bytes in them."""
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    metrics = step(TorchTrainingBackend.create(folder, Head.LANGUAGE_MODEL, trainer, 3))
    return metrics, torch.cuda.max_memory_allocated() - before


def planned(folder: Path, trainer: Trainer) -> int:
    shape = parse_model_shape(read_config(folder / "config.json"), "model")
    return trainer_memory(TrainedModel(shape, trainer, WORK, Device.GPU)).total - CUDA_CONTEXT_BYTES


@pytest.mark.parametrize("lora", [None, LORA], ids=["all weights", "nf4"])
def test_offloaded_activations_change_no_step_and_free_memory(
    lora: Lora | None, folder: Path, figure: Figure
) -> None:
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        kept, offloaded = (measure(folder, spec(lora, offload=each)) for each in (False, True))
    finally:
        torch.use_deterministic_algorithms(False)
    figure(
        f"peak {kept[1] >> 20} MiB, offloaded {offloaded[1] >> 20} MiB, "
        f"planned {planned(folder, spec(lora, offload=True)) >> 20} MiB"
    )
    for one, other in zip(offloaded[0], kept[0], strict=True):
        assert one == pytest.approx(other, rel=1e-6)
    assert offloaded[1] < 0.8 * kept[1]
    assert offloaded[1] == pytest.approx(planned(folder, spec(lora, offload=True)), rel=0.25)


def test_a_quantised_base_trains_as_on_a_cpu(
    folder: Path, figure: Figure, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    on_gpu, took = measure(folder, spec(LORA))
    dense, more = measure(folder, spec(LORA.model_copy(update={"quantization": None})))
    monkeypatch.setattr(torch_backend, "compute_device", lambda: torch.device("cpu"))
    on_cpu = step(TorchTrainingBackend.create(folder, Head.LANGUAGE_MODEL, spec(LORA), 3))
    figure(f"allocated {took >> 20} MiB, dense {more >> 20}, planned {planned(folder, spec(LORA)) >> 20}")
    for one, other in zip(on_gpu, on_cpu, strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-4)
        assert one["gradient_norm"] == pytest.approx(other["gradient_norm"], rel=1e-3)
    assert dense[0]["loss"] == pytest.approx(on_gpu[0]["loss"], rel=0.1) and took < more
    assert took == pytest.approx(planned(folder, spec(LORA)), rel=0.1)


@pytest.mark.parametrize("precision", list(Precision))
def test_a_workers_base_is_the_trainers(precision: Precision, folder: Path, figure: Figure) -> None:
    """Compare the weights that a worker rounds on a CPU with those that the GPU's kernels dequantise."""
    trainer = spec(LORA, precision)
    backend = TorchTrainingBackend.create(folder, Head.LANGUAGE_MODEL, trainer, 3)
    trained = dict(backend.snapshot())  # the adapter is zero at first
    gap = 0.0
    for name, weight in read_folder_weights(folder, trainer):
        ours = weight.to(trained[name].dtype).float()
        gap = max(gap, float((ours - trained[name].float()).abs().max() / ours.abs().max()))
    figure(f"largest relative difference of a weight {gap:.1e}")
    # The kernels may fuse the product of the scales with their mean.
    assert gap <= (1e-6 if precision is Precision.FLOAT32 else 2**-7)
