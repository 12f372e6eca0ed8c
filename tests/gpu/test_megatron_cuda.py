"""Megatron on one GPU: the losses of the torch backend."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from kubealign.spec.sections.megatron import MegatronBackendSpec
from kubealign.spec.sections.training import AdamW, Backend, Optimizer, TorchBackendSpec, Trainer
from kubealign_services.batch.packed import pack
from kubealign_services.training.backends import create_backend
from kubealign_services.training.contract import Head, UpdatePlan
from support.mean_negative_logprob import MeanNegativeLogprob

pytestmark = pytest.mark.timeout(180)


def losses(folder: Path, backend: Backend) -> list[float]:
    spec = Trainer(backend=backend, optimizer=Optimizer(adam_w=AdamW(learning_rate=1e-4)))
    training_backend = create_backend(
        folder,
        Head.LANGUAGE_MODEL,
        spec,
        total_updates=3,
        rank=0,
        world_size=1,
        seed=1,
        pooling=None,
        scores=(),
    )
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(3, 8000, (8, 128), generator=generator).tolist()
    batch = pack(tokens, [str(i) for i in range(8)])
    return [
        training_backend.train_step(batch, MeanNegativeLogprob(), UpdatePlan(1, 8, seed=1))["loss"]
        for _ in range(3)
    ]


def test_losses_are_those_of_the_torch_backend(folder: Path, figure: Callable[[str], None]) -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    expected = losses(folder, Backend(torch=TorchBackendSpec()))
    actual = losses(folder, Backend(megatron=MegatronBackendSpec()))
    figure(f"torch {expected}, megatron {actual}")
    assert actual == pytest.approx(expected, rel=1e-4)
