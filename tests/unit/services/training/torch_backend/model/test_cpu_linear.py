"""Linear layers by oneDNN: outputs and gradients match torch's own."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import linear as plain

from kubealign_services.training.torch_backend.model import cpu_linear
from kubealign_services.training.torch_backend.model.cpu_linear import (
    CpuLinear,
    linear,
    linear_no_grad,
    patch_cpu_linear,
)


def drawn(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("shape", [(1, 37, 24), (5, 24), (24,)])
@pytest.mark.parametrize("with_bias", [False, True])
def test_values_and_gradients_match_fp64(shape: tuple[int, ...], with_bias: bool) -> None:
    x, weight, bias = drawn(*shape, seed=1), drawn(40, 24, seed=2), drawn(40, seed=3)
    upward = drawn(*shape[:-1], 40, seed=4)
    actual, expected = [], []
    for dtype, function, into in ((torch.float32, linear, actual), (torch.float64, plain, expected)):
        leaves = [each.detach().to(dtype, copy=True).requires_grad_() for each in (x, weight, bias)]
        out = function(leaves[0], leaves[1], leaves[2] if with_bias else None)
        out.backward(upward.to(dtype))
        into += [out.detach(), *(leaf.grad for leaf in leaves[: 3 if with_bias else 2])]
    for one, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(one.double(), other, atol=1e-5, rtol=1e-6)


@pytest.fixture(autouse=True)
def _ignore_cpu_vendor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_linear, "_prefers_mkl", lambda: False)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Shapes of the inputs of oneDNN's operator."""
    asked: list[tuple[int, ...]] = []
    real = torch.ops.mkldnn._linear_pointwise

    def noted(x: Tensor, *rest: object) -> Tensor:
        asked.append(tuple(x.shape))
        actual: Tensor = real(x, *rest)
        return actual

    assert cpu_linear._onednn_works()
    monkeypatch.setattr(torch.ops.mkldnn, "_linear_pointwise", noted)
    return asked


def test_torch_computes_on_intel_processors(
    asked: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu_linear, "_prefers_mkl", lambda: True)
    x, weight = drawn(6, 4, seed=1).requires_grad_(), drawn(3, 4, seed=2).requires_grad_()
    linear(x, weight).sum().backward()
    assert asked == [] and weight.grad is not None
    torch.testing.assert_close(linear_no_grad(x.detach(), weight.detach()), plain(x, weight).detach())


def test_onednn_computes_fp32_and_torch_everything_else(asked: list[tuple[int, ...]]) -> None:
    x, weight = drawn(6, 4, seed=1).requires_grad_(), drawn(3, 4, seed=2).requires_grad_()
    linear(x, weight).sum().backward()
    assert asked == [(6, 4), (6, 3), (3, 6)]  # y, dx = g W, dW = g^T x
    for dtype in (torch.float64, torch.bfloat16):
        torch.testing.assert_close(
            linear(x.to(dtype), weight.to(dtype)), plain(x.to(dtype), weight.to(dtype))
        )
    assert linear_no_grad(x.detach()[:0], weight.detach()).shape == (0, 3)
    assert len(asked) == 3


def test_gradients_are_computed_only_when_required() -> None:
    x, weight = drawn(6, 4, seed=1).requires_grad_(), drawn(3, 4, seed=2)
    linear(x, weight).sum().backward()
    assert weight.grad is None
    torch.testing.assert_close(x.grad, weight.sum(0).expand(6, 4))
    with torch.no_grad():
        assert not linear(x, weight).requires_grad


def test_patching_keeps_names_and_skips_subclasses() -> None:
    class Doubled(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            return 2 * super().forward(input)

    model = nn.Sequential(nn.Linear(4, 4), Doubled(4, 4))
    names, x = list(model.state_dict()), drawn(2, 4, seed=1)
    before = model(x)
    patch_cpu_linear(model)
    assert [type(module) for module in model] == [CpuLinear, Doubled]
    assert list(model.state_dict()) == names
    torch.testing.assert_close(model(x), before)
