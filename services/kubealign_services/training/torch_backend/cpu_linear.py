"""Linear layers on a CPU in fp32, by oneDNN.

torch gives fp32 products to MKL. On an AMD processor oneDNN's take a tenth to a sixth less processor time,
and round as well; on an Intel one MKL's are the quicker, and are left to it (docs/training-backends.md). The
maker decides, not a trial of their speed: a machine has to compute the same bits every time. The gradients of
y = x W^T, for g with respect to y:

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
    """An nn.Linear, with its parameters under their names, that computes by `linear`."""

    def forward(self, input: Tensor) -> Tensor:
        return linear(input, self.weight, self.bias)


def use_cpu_linear(model: nn.Module) -> None:
    """Give every plain nn.Linear in the model this forward pass, in place. Subclasses keep their own."""
    for module in model.modules():
        if type(module) is nn.Linear:
            module.__class__ = CpuLinear


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [..., inputs], weight [outputs, inputs], bias [outputs] or None -> x W^T + b, [..., outputs]. What
    oneDNN is not asked for (another device or dtype, tensors of subclasses) goes to torch's own."""
    if not _is_ours(x, weight):
        return functional.linear(x, weight, bias)
    if not torch.is_grad_enabled():
        return product(x, weight, bias)
    found: Tensor = _Linear.apply(x, weight, bias)
    return found


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x W^T + b without a gradient; x and weight may be transposed views."""
    if not _is_ours(x, weight):
        return functional.linear(x, weight, bias)
    found: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return found


def _is_ours(x: Tensor, weight: Tensor) -> bool:
    return (
        x.device.type == "cpu"
        and x.dtype is torch.float32
        and weight.dtype is torch.float32
        and type(x) in (Tensor, nn.Parameter)
        and type(weight) in (Tensor, nn.Parameter)
        and x.numel() > 0
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
        and not _is_mkls()
        and _works()
    )


@cache
def _is_mkls() -> bool:
    """Whether torch has MKL, and this is a processor that it was made for."""
    file = Path("/proc/cpuinfo")
    has_mkl = bool(torch.backends.mkl.is_available())  # type: ignore[no-untyped-call]
    return has_mkl and file.is_file() and "GenuineIntel" in file.read_text()


@cache
def _works() -> bool:
    """Whether this torch has the operator, and it computes all three products from the views that they are
    asked of."""
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
        return product(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        rows = gradient.reshape(-1, gradient.shape[-1])
        wanted = ctx.needs_input_grad
        return (
            product(gradient, weight.T) if wanted[0] else None,
            product(rows.T, x.reshape(-1, x.shape[-1]).T) if wanted[1] else None,
            rows.sum(0) if wanted[2] else None,
        )
