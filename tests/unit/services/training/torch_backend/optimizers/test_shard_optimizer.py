"""Training with each optimiser: on the host and on the device, across a restart, and that the loss falls."""

# mypy: disable-error-code="no-untyped-call"
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from kubealign.spec.sections.precision import Precision
from kubealign.spec.sections.training import Backend, Lora, Optimizer, TorchBackendSpec, Trainer
from kubealign_services.algorithms.contract import Objective
from kubealign_services.batch.packed import Batch
from kubealign_services.training.contract import CorruptCheckpoint, Head, UpdatePlan
from kubealign_services.training.torch_backend.backend import TorchTrainingBackend
from kubealign_services.training.torch_backend.loss_scaling import LossScaleState
from kubealign_services.training.torch_backend.model.fsdp import full_tensor, local_shard
from kubealign_services.training.torch_backend.optimizers.shard_optimizer import (
    RuleParameters,
    ShardOptimizer,
)
from kubealign_services.training.torch_backend.optimizers.update_rules import AdamWRule

LENGTHS = (5, 9, 12, 7, 7, 16)
ADAMW: dict[str, Any] = {"learningRate": 3e-3, "weightDecay": 0.1}
#: A larger epsilon: rounding errors of gradients near 0 would otherwise change the sign of an update.
STEADY: dict[str, Any] = {"adamW": {**ADAMW, "epsilon": 1e-3}}
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "adamw": {"adamW": ADAMW},
    "blockwise": {"adamW": {**ADAMW, "states": "Blockwise8Bit"}},
    "muon": {"adamW": ADAMW, "muon": {"weightDecay": 0.1}},
    "host": {"adamW": ADAMW, "device": "Host"},
    "blockwise on host": {"adamW": {**ADAMW, "states": "Blockwise8Bit"}, "device": "Host"},
    "all on host": {"adamW": {**ADAMW, "states": "Blockwise8Bit"}, "muon": {}, "device": "Host"},
}


def make(
    folder: Path,
    optimizer: dict[str, Any],
    precision: Precision = Precision.FLOAT32,
    lora: Lora | None = None,
) -> TorchTrainingBackend:
    spec = Trainer(
        backend=Backend(torch=TorchBackendSpec(precision=precision, microbatch_tokens=24)),
        optimizer=Optimizer.model_validate(optimizer),
        lora=lora,
    )
    return TorchTrainingBackend.create(folder, Head.LANGUAGE_MODEL, spec, total_updates=20)


def steps(
    backend: TorchTrainingBackend, batch: Batch, objective: Objective, seeds: range
) -> list[dict[str, float]]:
    return [backend.train_step(batch, objective, UpdatePlan(1, 3, seed=seed)) for seed in seeds]


def weights(backend: TorchTrainingBackend) -> dict[str, Tensor]:
    """Return copies of the fp32 weights on the device."""
    return {
        name: full_tensor(parameter.detach()).clone() for name, parameter in backend.model.named_parameters()
    }


def assert_equal_weights(one: TorchTrainingBackend, other: TorchTrainingBackend) -> None:
    expected = weights(other)
    for name, weight in weights(one).items():
        assert torch.equal(weight, expected[name]), name


def with_fused_adamw(backend: TorchTrainingBackend) -> TorchTrainingBackend:
    """Return the backend with the kernel of the host on the device: another rounds otherwise."""
    adam_w = backend._optimizer_spec.adam_w
    groups = [(group["params"], group["weight_decay"]) for group in backend._optimizer.param_groups]
    part = RuleParameters(groups, lambda inner, _: AdamWRule(inner, adam_w.betas, adam_w.epsilon, fused=True))
    backend._optimizer = ShardOptimizer([part], on_host=False)
    return backend


@pytest.mark.parametrize("precision", list(Precision))
def test_on_the_host_equals_on_the_device(
    precision: Precision, wide_llama: Path, make_batch: Callable[..., Batch], objective: Objective
) -> None:
    """Bit for bit, with skipped steps in fp16: their gradient reaches neither the copies nor the moments."""
    host = make(wide_llama, {**STEADY, "device": "Host"}, precision)
    device = with_fused_adamw(make(wide_llama, STEADY, precision))
    batch = make_batch(*LENGTHS)
    for backend in (host, device):
        if backend.loss_scaler is not None:
            backend.loss_scaler.load(LossScaleState(2.0**18))
    results = steps(host, batch, objective, range(5))
    assert results == steps(device, batch, objective, range(5))
    if precision is Precision.FLOAT16:
        assert results[0]["skipped_updates"] > 0 and 0 < host.updates < 10
    assert_equal_weights(host, device)
    for name, parameter in host.model.named_parameters():
        other = device._optimizer.saved_state(device.model.get_parameter(name))
        for state, tensor in host._optimizer.saved_state(parameter).items():
            assert torch.equal(tensor, other[state]), (name, state)


def test_on_the_host_is_close_to_the_default(
    wide_llama: Path, make_batch: Callable[..., Batch], objective: Objective
) -> None:
    host, default = make(wide_llama, {**STEADY, "device": "Host"}), make(wide_llama, STEADY)
    batch = make_batch(*LENGTHS)
    for actual, expected in zip(
        *(steps(each, batch, objective, range(5)) for each in (host, default)), strict=True
    ):
        assert actual == pytest.approx(expected, rel=1e-5)
    expected_weights = weights(default)
    for name, weight in weights(host).items():
        torch.testing.assert_close(weight, expected_weights[name], atol=1e-6, rtol=1e-6, msg=name)


def test_memory_of_the_host_is_another(
    wide_llama: Path, make_batch: Callable[..., Batch], objective: Objective
) -> None:
    """The moments and the copies share no memory with the weights; on the device they are the weights."""
    for device, is_shared in (("Host", False), ("Accelerator", True)):
        backend = make(wide_llama, {"adamW": ADAMW, "device": device})
        steps(backend, make_batch(*LENGTHS), objective, range(1))
        for parameter, tensor in backend._optimizer._stepped.items():
            shard = local_shard(parameter.detach())
            assert (tensor.data_ptr() == shard.data_ptr()) is is_shared
            assert torch.equal(tensor, shard) and tensor.grad is None
        assert len(backend._optimizer._stepped) == len(backend._optimizer.state) == 21


@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_the_loss_falls_and_a_resumed_run_equals_an_uninterrupted_one(
    name: str, wide_llama: Path, tmp_path: Path, make_batch: Callable[..., Batch], objective: Objective
) -> None:
    batch = make_batch(*LENGTHS)
    straight = make(wide_llama, OPTIMIZERS[name])
    results = steps(straight, batch, objective, range(6))
    assert results[-1]["loss"] < results[0]["loss"] - 0.3
    first = make(wide_llama, OPTIMIZERS[name])
    steps(first, batch, objective, range(3))
    first.save(tmp_path)
    second = make(wide_llama, OPTIMIZERS[name])
    # A step before the load: what it changed must be replaced.
    steps(second, batch, objective, range(7, 8))
    second.load(tmp_path)
    assert_equal_weights(second, first)
    assert steps(second, batch, objective, range(3, 6)) == results[3:]
    assert_equal_weights(second, straight)


def test_an_adapter_has_8_bit_moments_on_the_host(
    wide_llama: Path, tmp_path: Path, make_batch: Callable[..., Batch], objective: Objective
) -> None:
    """The frozen weights in bf16 have no copies on the host; the adapter's are in fp32."""
    optimizer, lora, batch = OPTIMIZERS["blockwise on host"], Lora(rank=64, alpha=64), make_batch(*LENGTHS)
    straight, resumed = (make(wide_llama, optimizer, Precision.BFLOAT16, lora) for _ in range(2))
    results = steps(straight, batch, objective, range(2))
    straight.save(tmp_path)
    results += steps(straight, batch, objective, range(2, 6))
    assert results[-1]["loss"] < results[0]["loss"] - 0.3
    stepped = straight._optimizer._stepped
    assert len(stepped) == 28 and {tensor.dtype for tensor in stepped.values()} == {torch.float32}
    # The factors of 2,048 values at the outputs of keys and values are too small.
    assert sum("state1" in straight._optimizer.saved_state(parameter) for parameter in stepped) == 24
    resumed.load(tmp_path)
    assert steps(resumed, batch, objective, range(2, 6)) == results[2:]
    assert_equal_weights(resumed, straight)


def test_an_untrained_checkpoint_has_no_state(
    wide_llama: Path, tmp_path: Path, make_batch: Callable[..., Batch], objective: Objective
) -> None:
    optimizer, batch = OPTIMIZERS["all on host"], make_batch(*LENGTHS)
    saved, loaded = make(wide_llama, optimizer), make(wide_llama, optimizer)
    saved.save(tmp_path)
    steps(loaded, batch, objective, range(2))
    loaded.load(tmp_path)
    assert not loaded._optimizer.state
    assert steps(loaded, batch, objective, range(2)) == steps(saved, batch, objective, range(2))
    assert_equal_weights(loaded, saved)


def test_the_device_of_the_optimizer_may_change(
    wide_llama: Path, tmp_path: Path, make_batch: Callable[..., Batch], objective: Objective
) -> None:
    batch = make_batch(*LENGTHS)
    host = make(wide_llama, {**STEADY, "device": "Host"})
    steps(host, batch, objective, range(2))
    host.save(tmp_path)
    device = with_fused_adamw(make(wide_llama, STEADY))
    device.load(tmp_path)
    assert steps(device, batch, objective, range(2, 4)) == steps(host, batch, objective, range(2, 4))
    assert_equal_weights(device, host)


@pytest.mark.parametrize(
    ("other", "says"),
    [
        (
            "blockwise",
            r"holds exp_avg, exp_avg_sq, step as .*optimiser has absmax1, .*set trainer\.optimizer",
        ),
        ("muon", r"optimiser has momentum_buffer: set trainer\.optimizer"),
    ],
)
def test_the_state_of_another_optimizer_is_refused_and_changes_nothing(
    other: str,
    says: str,
    wide_llama: Path,
    tmp_path: Path,
    make_batch: Callable[..., Batch],
    objective: Objective,
) -> None:
    saved = make(wide_llama, OPTIMIZERS["adamw"])
    steps(saved, make_batch(*LENGTHS), objective, range(1))
    saved.save(tmp_path)
    fresh, untouched = make(wide_llama, OPTIMIZERS[other]), make(wide_llama, OPTIMIZERS[other])
    with pytest.raises(CorruptCheckpoint, match=says):
        fresh.load(tmp_path)
    assert_equal_weights(fresh, untouched)
