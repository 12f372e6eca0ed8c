"""Linear layers on a CPU in fp32, computed by oneDNN.

torch hands fp32 matrix products to MKL. On an AMD processor oneDNN takes a tenth to a sixth less processor
time, and rounds as well; on an Intel processor MKL is faster and is kept (docs/training-backends.md). The CPU
vendor decides, not a measurement of speed: a machine has to compute the same bits every time. The gradients
of y = x W^T, for g with respect to y:

    d x = g W        d W = g^T x        d b = the sum of g's rows
"""

from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional


class CpuLinear(nn.Linear):
    """An nn.Linear with the same parameter names that computes with `linear`."""

    def forward(self, input: Tensor) -> Tensor:
        return linear(input, self.weight, self.bias)


def patch_cpu_linear(model: nn.Module) -> None:
    """Patch every plain nn.Linear of the model in place to compute with `linear`.

    Subclasses keep their own forward pass.
    """
    for module in model.modules():
        if type(module) is nn.Linear:
            module.__class__ = CpuLinear


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x W^T + b, [..., outputs].

    Inputs that oneDNN does not handle (another device or dtype, tensor subclasses) go to torch's own
    implementation.

    Args:
        x: [..., inputs].
        weight: [outputs, inputs].
        bias: [outputs] or None.
    """
    if not _can_use_onednn(x, weight):
        return functional.linear(x, weight, bias)
    if not torch.is_grad_enabled():
        return linear_no_grad(x, weight, bias)
    output: Tensor = _Linear.apply(x, weight, bias)
    return output


def linear_no_grad(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x W^T + b without a gradient; x and weight may be transposed views."""
    if not _can_use_onednn(x, weight):
        return functional.linear(x, weight, bias)
    output: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return output


def _can_use_onednn(x: Tensor, weight: Tensor) -> bool:
    return (
        x.device.type == "cpu"
        and x.dtype is torch.float32
        and weight.dtype is torch.float32
        and type(x) in (Tensor, nn.Parameter)
        and type(weight) in (Tensor, nn.Parameter)
        and x.numel() > 0
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
        and not _prefers_mkl()
        and _onednn_works()
    )


@cache
def _prefers_mkl() -> bool:
    """Return True when torch has MKL and the processor is an Intel one."""
    file = Path("/proc/cpuinfo")
    has_mkl = bool(torch.backends.mkl.is_available())  # type: ignore[no-untyped-call]
    return has_mkl and file.is_file() and "GenuineIntel" in file.read_text()


@cache
def _onednn_works() -> bool:
    """Return True when this torch has the operator and computes all three products from the required
    views.
    """
    x, weight, gradient = (
        torch.linspace(-1, 1, rows * columns).view(rows, columns)
        for rows, columns in ((5, 3), (4, 3), (5, 4))
    )
    try:
        operator = torch.ops.mkldnn._linear_pointwise
        return all(
            bool(torch.allclose(operator(a, b, None, "none", [], ""), a @ b.T, rtol=1e-5, atol=1e-6))
            for a, b in ((x, weight), (gradient, weight.T), (gradient.T, x.T))
        )
    except (AttributeError, RuntimeError):
        return False


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return linear_no_grad(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        rows = gradient.reshape(-1, gradient.shape[-1])
        needed = ctx.needs_input_grad
        return (
            linear_no_grad(gradient, weight.T) if needed[0] else None,
            linear_no_grad(rows.T, x.reshape(-1, x.shape[-1]).T) if needed[1] else None,
            rows.sum(0) if needed[2] else None,
        )
