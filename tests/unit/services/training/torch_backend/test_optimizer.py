"""Parameter groups, norms and steps of the optimiser, computed by hand."""

import math

import pytest
import torch
from torch import nn

from kubealign.spec.sections.training import AdamW, Optimizer
from kubealign_services.training.torch_backend.optimizer import (
    clip_gradients,
    gradient_norm,
    step_optimizer,
)
from kubealign_services.training.torch_backend.optimizers.factory import make_optimizer


def test_decay_is_for_matrices_only() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2))
    optimizer = make_optimizer(model, Optimizer(adam_w=AdamW(weight_decay=0.1)))
    decay = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    assert [decay[id(p)] for p in model.parameters()] == [0.1, 0.0, 0.0, 0.0]


def test_the_norm_is_global_and_bounds_the_gradient() -> None:
    first, second = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(1))
    first.grad, second.grad = torch.tensor([2.0, 3.0]), torch.tensor([6.0])
    norm = gradient_norm([first, second])
    assert norm == pytest.approx(7.0)  # sqrt(4 + 9 + 36)
    clip_gradients([first, second], norm, 14.0)
    assert second.grad.item() == 6.0
    clip_gradients([first, second], norm, 3.5)
    assert first.grad.tolist() == pytest.approx([1.0, 1.5]) and second.grad.item() == pytest.approx(3.0)


def test_the_first_step_of_adamw() -> None:
    # Bias correction makes the first moments g and g^2: w - lr * g / |g| - lr * decay * w, for a matrix.
    weight = nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        weight.weight.fill_(2.0)
    spec = Optimizer(adam_w=AdamW(learning_rate=0.1, weight_decay=0.5, epsilon=1e-12))
    optimizer = make_optimizer(weight, spec)
    weight.weight.grad = torch.tensor([[3.0]])
    assert step_optimizer(optimizer, spec, 0, 1) == 0.1
    assert math.isclose(weight.weight.item(), 2.0 - 0.1 * 0.5 * 2.0 - 0.1, rel_tol=1e-6)


def test_a_step_needs_a_learning_rate() -> None:
    weight = nn.Linear(1, 1)
    with pytest.raises(ValueError, match="effective_trainer"):
        step_optimizer(make_optimizer(weight, Optimizer()), Optimizer(), 0, 1)
