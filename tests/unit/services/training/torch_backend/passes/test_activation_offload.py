"""Offloaded activations: the same gradients bit for bit, what moves and what stays."""

# mypy: disable-error-code="no-untyped-call"
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from kubealign.spec.sections.precision import Precision
from kubealign.spec.sections.training import AdamW, Backend, Lora, Optimizer, TorchBackendSpec, Trainer
from kubealign_services.algorithms.contract import Objective
from kubealign_services.batch.packed import Batch
from kubealign_services.training.contract import Head, UpdatePlan
from kubealign_services.training.torch_backend.backend import TorchTrainingBackend
from kubealign_services.training.torch_backend.passes.activation_offload import ActivationOffload

CPU = torch.device("cpu")
LOGPROBS = frozenset({"logprobs"})


def make(
    folder: Path, checkpointing: bool, lora: Lora | None, precision: Precision = Precision.FLOAT32
) -> TorchTrainingBackend:
    torch_spec = TorchBackendSpec(
        microbatch_tokens=16,
        gradient_checkpointing=checkpointing,
        activation_offload=True,
        precision=precision,
    )
    spec = Trainer(
        backend=Backend(torch=torch_spec),
        optimizer=Optimizer(adam_w=AdamW(learning_rate=1e-2)),
        lora=lora,
    )
    return TorchTrainingBackend.create(folder, Head.LANGUAGE_MODEL, spec, total_updates=20)


def with_offload(backend: TorchTrainingBackend) -> ActivationOffload:
    """Offload the backend's activations although they are on a CPU. Return the offloader."""
    offload = ActivationOffload(CPU, minimum_bytes=256)
    backend._context = replace(backend._context, activation_offload=offload)
    return offload


@pytest.mark.parametrize("lora", [None, Lora(rank=2)], ids=["full", "lora"])
@pytest.mark.parametrize("checkpointing", [False, True], ids=["plain", "checkpointing"])
def test_updates_are_those_without_offloading(
    checkpointing: bool,
    lora: Lora | None,
    tied_llama: Path,
    make_batch: Callable[..., Batch],
    objective: Objective,
) -> None:
    batch = make_batch(5, 8, 3, 6, 12, 16)
    plain, moved = (make(tied_llama, checkpointing, lora) for _ in range(2))
    # A CPU's activations are in host memory already.
    assert plain._context.activation_offload is None
    offload = with_offload(moved)
    for seed in range(3):
        plan = UpdatePlan(1, 3, seed)
        assert moved.train_step(batch, objective, plan) == plain.train_step(batch, objective, plan)
    assert offload.moved_bytes > 0 and not offload._copies
    for (name, one), (_, other) in zip(
        moved.model.named_parameters(), plain.model.named_parameters(), strict=True
    ):
        assert torch.equal(one, other), name


def test_checkpointing_moves_the_inputs_of_the_blocks(
    llama: Path, make_batch: Callable[..., Batch], objective: Objective
) -> None:
    moved = {}
    for checkpointing in (False, True):
        backend = make(llama, checkpointing, None)
        offload = with_offload(backend)
        backend.train_step(make_batch(16), objective, UpdatePlan(1, 1, 0))
        moved[checkpointing] = offload.moved_bytes
    # Two blocks' inputs, 16 tokens of 32 values each, and a few such tensors after the blocks.
    states = 16 * 32 * 4
    assert 2 * states <= moved[True] <= 8 * states
    assert moved[False] > 4 * moved[True]


def test_a_cached_pass_is_offloaded_and_trained_on(
    llama: Path, make_batch: Callable[..., Batch], objective: Objective
) -> None:
    batch = make_batch(5, 8)
    plain, moved = (make(llama, False, None) for _ in range(2))
    offload = with_offload(moved)
    for backend in (plain, moved):
        backend.forward_and_cache(batch, LOGPROBS, objective)
        assert len(backend._forward_cache) == 1
    before = offload.moved_bytes
    assert before > 0
    plan = UpdatePlan(1, 2, 0)
    assert moved.train_step(batch, objective, plan) == plain.train_step(batch, objective, plan)
    assert offload.moved_bytes == before, "the update repeated the cached pass"


class Branches(nn.Module):
    """Three linear layers on one input, then a product and an activation function."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(64, 64) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        product = self.first(x) * self.second(x)
        return product.tanh() + self.third(x) + product @ self.third.weight.detach()


def test_parameters_and_small_tensors_stay_and_shared_inputs_move_once() -> None:
    torch.manual_seed(0)
    model, x = Branches(), torch.randn(128, 64)
    size = x.numel() * 4
    offload = ActivationOffload(CPU, minimum_bytes=64 * 64 * 4)
    with offload.during_forward(model):
        y = model(x)
    # The input of the three layers, the two factors and the result of tanh.
    assert offload.moved_bytes == 4 * size
    y.square().sum().backward()
    grads = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
    model.zero_grad()
    model(x).square().sum().backward()
    for parameter, grad in zip(model.parameters(), grads, strict=True):
        assert parameter.grad is not None and torch.equal(grad, parameter.grad)
    larger = ActivationOffload(CPU, minimum_bytes=size + 1)
    with larger.during_forward(model):
        model(x)
    assert larger.moved_bytes == 0


def test_gathered_parameters_stay(
    llama: Path, make_batch: Callable[..., Batch], objective: Objective
) -> None:
    backend = make(llama, False, None, precision=Precision.BFLOAT16)
    # Smaller than a matrix of 32 x 32 in bf16, larger than any activation of four tokens.
    offload = ActivationOffload(CPU, minimum_bytes=2 * 32 * 32)
    backend._context = replace(backend._context, activation_offload=offload)
    backend.train_step(make_batch(4), objective, UpdatePlan(1, 1, 0))
    assert offload.moved_bytes == 0
    backend.train_step(make_batch(16), objective, UpdatePlan(1, 1, 0))
    assert offload.moved_bytes > 0


def test_device_memory_is_free_between_the_passes() -> None:
    model = nn.Linear(64, 64)
    offload = ActivationOffload(CPU, minimum_bytes=1024)
    with offload.during_forward(model):
        # Both functions save their results.
        active = model(torch.randn(128, 64)).tanh()
        raised = active.exp()
        storages = [StorageWeakRef(each.untyped_storage()) for each in (active, raised)]
        z = raised.sum()
    assert offload.moved_bytes == (1 + 2) * 128 * 64 * 4
    del active, raised
    assert all(storage.expired() for storage in storages)
    z.backward()
    assert not offload._copies


def test_a_tensor_that_changes_after_it_is_saved_keeps_its_value() -> None:
    x = torch.randn(32, 32)
    first, second = (torch.randn(32, 32, requires_grad=True) for _ in range(2))
    offload = ActivationOffload(CPU, minimum_bytes=1024)
    with offload.during_forward(nn.Linear(1, 1)):
        values = x.clone()
        one = values * first
        values.mul_(3)
        other = values * second
    (one.sum() + other.sum()).backward()
    assert first.grad is not None and torch.equal(first.grad, x)
    assert second.grad is not None and torch.equal(second.grad, 3 * x)


def test_views_keep_their_strides() -> None:
    x = torch.randn(3, 40, 16)
    seen: list[Any] = []

    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, part: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(part)
            return part.square()

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            (part,) = ctx.saved_tensors
            seen.append((part.shape, part.stride(), part.storage_offset(), part.clone()))
            return 2 * part * gradient

    part = x.requires_grad_().transpose(0, 1)[7:, :, 3:9]
    offload = ActivationOffload(CPU, minimum_bytes=1024)
    with offload.during_forward(nn.Linear(1, 1)):
        y = Square.apply(part)
    y.sum().backward()
    assert offload.moved_bytes == x.numel() * 4
    ((shape, stride, start, values),) = seen
    assert (shape, stride, start) == (part.shape, part.stride(), part.storage_offset())
    assert torch.equal(values, part)
