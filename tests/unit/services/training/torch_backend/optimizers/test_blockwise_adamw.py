"""AdamW with 8-bit moments, compared with a loop over the blocks and with bitsandbytes over a whole model."""

# mypy: disable-error-code="no-untyped-call"
from pathlib import Path

import pytest
import torch
from bitsandbytes.functional import create_dynamic_map
from bitsandbytes.optim import AdamW8bit, GlobalOptimManager
from torch import Tensor, nn

from kubealign.spec.sections.optimizers import MomentStates
from kubealign.spec.sections.training import AdamW, Optimizer, Trainer
from kubealign_services.runtime.process.failures import PermanentFailure
from kubealign_services.training.contract import Head
from kubealign_services.training.torch_backend.backend import TorchTrainingBackend
from kubealign_services.training.torch_backend.optimizer import step_optimizer
from kubealign_services.training.torch_backend.optimizers.blockwise_adamw import BlockwiseAdamWRule
from kubealign_services.training.torch_backend.optimizers.factory import make_optimizer
from kubealign_services.training.torch_backend.optimizers.update_rules import DecayGroup
from support.hidden_package import hide_package

RATE, BETAS, EPSILON, DECAY = 1e-2, (0.9, 0.95), 1e-8, 0.1
SPEC = Optimizer(
    adam_w=AdamW(
        learning_rate=RATE,
        betas=BETAS,
        epsilon=EPSILON,
        weight_decay=DECAY,
        states=MomentStates.BLOCKWISE_8BIT,
    )
)


def dequantise(codes: Tensor, scales: Tensor, numbers: Tensor) -> Tensor:
    """Return the moments in float64."""
    values = numbers.double()[codes.flatten().long()]
    return values * scales.double().repeat_interleave(256)[: len(values)]


def distance_to_nearest(values: Tensor, numbers: Tensor) -> Tensor:
    """Return the distance of each value to the nearest of the numbers, one value after another."""
    return torch.stack([(numbers.double() - value).abs().min() for value in values])


def test_equals_a_loop_of_dequantisation_update_and_quantisation() -> None:
    """The last block is not full, and the second moment has a map of its own: it has no negative values."""
    signed, unsigned = create_dynamic_map(signed=True), create_dynamic_map(signed=False)
    torch.manual_seed(0)
    weight = torch.randn(3, 200)
    rule = BlockwiseAdamWRule([DecayGroup([weight], DECAY)], BETAS, EPSILON)
    expected = weight.double().flatten()
    mean = (torch.full((600,), 127), torch.zeros(3))
    square = (torch.zeros(600), torch.zeros(3))
    for step in range(1, 4):
        weight.grad = torch.randn(3, 200) * torch.logspace(-3, 0, 200)
        rule.optimizer.param_groups[0]["lr"] = RATE
        rule.optimizer.step()
        gradient = weight.grad.double().flatten()
        first = BETAS[0] * dequantise(*mean, signed) + (1 - BETAS[0]) * gradient
        second = BETAS[1] * dequantise(*square, unsigned) + (1 - BETAS[1]) * gradient**2
        expected *= 1 - RATE * DECAY
        bias = 1 - BETAS[0] ** step, (1 - BETAS[1] ** step) ** 0.5
        expected -= RATE / bias[0] * first / (second.sqrt() / bias[1] + EPSILON)
        torch.testing.assert_close(weight.double().flatten(), expected, atol=2e-6, rtol=0)
        saved = {name: tensor.clone() for name, tensor in rule.saved_state(weight).items()}
        assert int(saved["step"]) == step and saved["state1"].dtype == torch.uint8
        for exact, (state, scale), numbers in (
            (first, ("state1", "absmax1"), signed),
            (second, ("state2", "absmax2"), unsigned),
        ):
            largest = torch.stack([block.abs().max() for block in exact.split(256)])
            torch.testing.assert_close(saved[scale].double(), largest, atol=0, rtol=1e-6)
            relative = exact / largest.repeat_interleave(256)[:600]
            # On a CPU bitsandbytes finds the nearest number by a table of 65,536 entries between -1 and 1.
            error = (numbers[saved[state].flatten().long()] - relative).abs()
            assert (error <= distance_to_nearest(relative, numbers) + 2**-15).all()
        mean, square = (saved["state1"], saved["absmax1"]), (saved["state2"], saved["absmax2"])


def test_equals_bitsandbytes_over_a_whole_model() -> None:
    """Bit for bit where the moments have 8 bits; torch rounds the fp32 moments' update otherwise."""
    torch.manual_seed(1)
    model, theirs = (
        nn.Sequential(nn.Embedding(100, 64), nn.Linear(64, 100), nn.Linear(100, 3)) for _ in range(2)
    )
    theirs.load_state_dict(model.state_dict())
    optimizer = make_optimizer(model, SPEC)
    manager = GlobalOptimManager.get_instance()
    groups = [
        {"params": [p for p in theirs.parameters() if p.dim() > 1], "weight_decay": DECAY},
        {"params": [p for p in theirs.parameters() if p.dim() <= 1], "weight_decay": 0.0},
    ]
    reference = AdamW8bit(groups, lr=RATE, betas=BETAS, eps=EPSILON)
    manager.override_config(theirs[0].weight, "optim_bits", 32)
    for step in range(5):
        for ours, other in zip(model.parameters(), theirs.parameters(), strict=True):
            ours.grad = torch.randn_like(ours)
            other.grad = ours.grad.clone()
        assert step_optimizer(optimizer, SPEC, step, 5) == RATE
        reference.step()
    assert torch.equal(model[1].weight, theirs[1].weight)
    for ours, other in zip(model.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(ours, other, atol=1e-6, rtol=1e-5)
    assert reference.state[theirs[1].weight]["state1"].dtype == torch.uint8
    assert optimizer.state[model[1].weight]["state1"].dtype == torch.uint8
    assert optimizer.state[model[0].weight]["exp_avg"].dtype == torch.float32


def test_a_shard_without_rows_is_left_alone() -> None:
    empty, weight = torch.zeros(0, 64), torch.ones(64, 64)
    rule = BlockwiseAdamWRule([DecayGroup([empty], 0.0), DecayGroup([weight], 0.0)], BETAS, EPSILON)
    empty.grad, weight.grad = torch.zeros(0, 64), torch.ones(64, 64)
    for group in rule.optimizer.param_groups:
        group["lr"] = RATE
    rule.optimizer.step()
    assert rule.saved_state(empty) == {} and len(rule.optimizer.param_groups) == 2
    torch.testing.assert_close(weight, torch.full((64, 64), 1 - RATE))


def test_a_weight_that_is_not_contiguous_is_refused() -> None:
    with pytest.raises(ValueError, match=r"shape \(100, 64\) is not contiguous.*write Float32"):
        BlockwiseAdamWRule([DecayGroup([torch.zeros(64, 100).T], 0.0)], BETAS, EPSILON)


def test_a_missing_package_is_named_before_the_model_is_loaded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hide_package(monkeypatch, "bitsandbytes")
    with pytest.raises(PermanentFailure, match=r"pip install 'kubealign\[bitsandbytes\]', or write Float32"):
        TorchTrainingBackend.create(tmp_path / "absent", Head.LANGUAGE_MODEL, Trainer(optimizer=SPEC), 1)
