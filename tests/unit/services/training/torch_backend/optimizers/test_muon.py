"""Muon, compared with torch.optim.Muon and with Newton-Schulz iterations in float64."""

# mypy: disable-error-code="no-untyped-call"
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from transformers import Qwen3MoeConfig

from kubealign.spec.sections.optimizers import LearningRateAdjustment, Muon
from kubealign.spec.sections.training import AdamW, Optimizer
from kubealign_services.training.contract import Head
from kubealign_services.training.torch_backend.model.loading import load_model
from kubealign_services.training.torch_backend.optimizer import step_optimizer
from kubealign_services.training.torch_backend.optimizers.factory import hidden_matrices, make_optimizer

STEPS = 4
ADJUSTMENTS = {
    LearningRateAdjustment.MATCH_RMS_ADAM_W: lambda outputs, inputs: 0.2 * math.sqrt(max(outputs, inputs)),
    LearningRateAdjustment.ORIGINAL: lambda outputs, inputs: math.sqrt(max(1, outputs / inputs)),
    LearningRateAdjustment.SPECTRAL_UNCLAMPED: lambda outputs, inputs: math.sqrt(outputs / inputs),
}


def random_gradients(model: nn.Module, step: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(step)
    return {
        name: torch.randn(parameter.shape, generator=generator)
        for name, parameter in model.named_parameters()
    }


def train(model: nn.Module, spec: Optimizer) -> None:
    optimizer = make_optimizer(model, spec)
    for step in range(STEPS):
        for name, gradient in random_gradients(model, step).items():
            model.get_parameter(name).grad = gradient
        step_optimizer(optimizer, spec, step, STEPS)


def test_equals_torchs_muon_and_adamw(llama: Path) -> None:
    spec = Optimizer(
        muon=Muon(learning_rate=0.02, momentum=0.9, weight_decay=0.3, newton_schulz_steps=4),
        adam_w=AdamW(learning_rate=1e-3, weight_decay=0.1),
    )
    model, theirs = (load_model(llama, Head.LANGUAGE_MODEL) for _ in range(2))
    train(model, spec)
    matrices = {id(each) for each in hidden_matrices(theirs)}
    assert len(matrices) == 14
    muon = torch.optim.Muon(
        [p for p in theirs.parameters() if id(p) in matrices], lr=0.02, momentum=0.9, weight_decay=0.3,
        ns_steps=4, adjust_lr_fn="match_rms_adamw",
    )  # fmt: skip
    others = [p for p in theirs.parameters() if id(p) not in matrices]
    groups = [
        {"params": [p for p in others if p.dim() > 1], "weight_decay": 0.1},
        {"params": [p for p in others if p.dim() <= 1], "weight_decay": 0.0},
    ]
    adamw = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95))
    for step in range(STEPS):
        for name, gradient in random_gradients(theirs, step).items():
            theirs.get_parameter(name).grad = gradient
        muon.step()
        adamw.step()
    for name, expected in theirs.named_parameters():
        assert torch.equal(model.get_parameter(name), expected), name


@pytest.mark.parametrize("adjustment", list(LearningRateAdjustment))
@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize("shape", [(24, 40), (40, 24), (2, 24, 40)])
def test_equals_newton_schulz_in_float64(
    adjustment: LearningRateAdjustment, nesterov: bool, shape: tuple[int, ...]
) -> None:
    """bf16 has 8 significant bits: the update of each matrix differs by some percent of its norm."""
    rate, momentum, decay = 0.02, 0.8, 0.1
    model = nn.Module()
    model.weight = nn.Parameter(torch.zeros(shape))
    muon = Muon(
        learning_rate=rate, momentum=momentum, nesterov=nesterov, weight_decay=decay,
        learning_rate_adjustment=adjustment,
    )  # fmt: skip
    spec = Optimizer(muon=muon, adam_w=AdamW(learning_rate=1.0))
    optimizer = make_optimizer(model, spec)
    mean, weights = torch.zeros(shape).double(), torch.zeros(shape).double()
    for step in range(STEPS):
        gradient = torch.randn(shape, generator=torch.Generator().manual_seed(step))
        model.weight.grad = gradient
        before = model.weight.detach().double().clone()
        step_optimizer(optimizer, spec, step, STEPS)
        mean = momentum * mean + (1 - momentum) * gradient.double()
        ahead = momentum * mean + (1 - momentum) * gradient.double() if nesterov else mean
        scale = ADJUSTMENTS[adjustment](*shape[-2:])
        weights = before * (1 - rate * decay)
        for actual, start, update in zip(
            *(each.reshape(-1, *shape[-2:]) for each in (model.weight.detach().double(), weights, ahead)),
            strict=True,
        ):
            expected = newton_schulz(update)
            direction = (start - actual) / (rate * scale)
            assert torch.linalg.norm(direction - expected) < 0.03 * torch.linalg.norm(expected)
            # The singular values of the update are near 1, whatever those of the gradient are.
            values = torch.linalg.svdvals(direction)
            assert values.min() > 0.4 and values.max() < 1.4


def newton_schulz(matrix: Tensor) -> Tensor:
    """Return x after five iterations of x = a x + b (x x^T) x + c (x x^T)^2 x (Jordan et al. 2024)."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = matrix / torch.linalg.norm(matrix)
    for _ in range(5):
        gram = x @ x.T
        x = a * x + b * gram @ x + c * gram @ gram @ x
    return x


def test_a_stack_of_experts_is_trained_as_its_matrices(
    tmp_path: Path, save_model: Callable[..., Path]
) -> None:
    config = Qwen3MoeConfig(
        vocab_size=41, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2, num_experts=3, num_experts_per_tok=2, moe_intermediate_size=16,
    )  # fmt: skip
    model = load_model(save_model(config, tmp_path), Head.LANGUAGE_MODEL)
    name = "backbone.model.layers.0.mlp.experts.down_proj"
    experts = [nn.Parameter(each.clone()) for each in model.get_parameter(name).detach()]
    train(model, Optimizer(muon=Muon(learning_rate=0.02), adam_w=AdamW(learning_rate=1e-3)))
    muon = torch.optim.Muon(experts, lr=0.02, weight_decay=0.0, adjust_lr_fn="match_rms_adamw")
    for step in range(STEPS):
        for expert, gradient in zip(experts, random_gradients(model, step)[name], strict=True):
            expert.grad = gradient.clone()
        muon.step()
    assert torch.equal(model.get_parameter(name), torch.stack(experts))


def test_the_rate_of_adamw_and_its_schedule_apply(llama: Path) -> None:
    """Without a rate of its own, a step is that of the same rate; the schedule scales both rates."""
    models = [load_model(llama, Head.LANGUAGE_MODEL) for _ in range(2)]
    for model, rate in zip(models, (None, 0.01), strict=True):
        train(model, Optimizer(muon=Muon(learning_rate=rate), adam_w=AdamW(learning_rate=0.01)))
    for one, other in zip(*(model.parameters() for model in models), strict=True):
        assert torch.equal(one, other)
    spec = Optimizer.model_validate(
        {
            "muon": {"learningRate": 0.5},
            "adamW": {"learningRate": 0.25},
            "schedule": {"linear": {"warmupSteps": 2}},
        }
    )
    optimizer = make_optimizer(models[0], spec)
    assert step_optimizer(optimizer, spec, 0, 10) == 0.125
    assert {group["lr"] for group in optimizer.param_groups} == {0.125, 0.25}
