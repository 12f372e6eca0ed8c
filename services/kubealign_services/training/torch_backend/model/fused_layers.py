"""Fused, memory-efficient layers of a trunk: they store less for the backward pass than torch's and read
memory fewer times.

RMSNorm (Zhang and Sennrich 2019) and the gated MLP with SiLU (Shazeer 2020), as most trunks have them. Cheap
intermediate results are recomputed: a norm stores its input, an MLP its two projections. In fp32 only: lower
precisions round between the steps, each model class in its own way.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import silu

from kubealign_services.training.torch_backend.model.cpu_linear import CpuLinear, linear_no_grad

# Elements of a block, which fits into a CPU's caches a few times: 1 MiB in fp32.
_CACHED = 1 << 18

_FUSED_CLASSES: dict[type[nn.Module], type[nn.Module]] = {}


def patch_fused_layers(model: nn.Module) -> None:
    """Patch the forward pass of each norm and MLP of the known form in place.

    A trial on random input verifies the form; other layers stay unchanged. Names, parameters and results stay
    the same. The model is on the CPU, in evaluation mode.
    """
    fused_by_class: dict[type[nn.Module], type[nn.Module] | None] = {}
    for module in list(model.modules()):
        cls = type(module)
        if cls not in fused_by_class:
            fused_by_class[cls] = _fused_class(module)
        fused = fused_by_class[cls]
        if fused is not None:
            module.__class__ = fused


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """Return x / sqrt(mean of its squares + epsilon) * weight.

    Args:
        x: [..., H].
        weight: [H].
    """
    output: Tensor = _RmsNorm.apply(x, weight, epsilon)
    return output


def silu_gate(gate: Tensor, up: Tensor) -> Tensor:
    """Return silu(gate) * up, all of one shape."""
    output: Tensor = _SiluGate.apply(gate, up)
    return output


def silu_gate_down(gate: Tensor, up: Tensor, weight: Tensor) -> Tensor:
    """Return (silu(gate) * up) W^T, [..., H], without storing the product.

    Args:
        gate, up: [..., I].
        weight: [H, I].
    """
    output: Tensor = _SiluGateDown.apply(gate, up, weight)
    return output


class _FusedNorm(nn.Module):
    """Mixin placed before a model's own norm class."""

    weight: nn.Parameter
    variance_epsilon: float

    def forward(self, hidden_states: Tensor) -> Tensor:
        if _are_plain_fp32(hidden_states, self.weight):
            return rms_norm(hidden_states, self.weight, self.variance_epsilon)
        output: Tensor = super().forward(hidden_states)
        return output


class _FusedMlp(nn.Module):
    """Mixin placed before a model's own MLP class. Projections may have adapters."""

    gate_proj: nn.Module
    up_proj: nn.Module
    down_proj: nn.Module

    def forward(self, x: Tensor) -> Tensor:
        if not _are_plain_fp32(x):
            output: Tensor = super().forward(x)
            return output
        gate, up = self.gate_proj(x), self.up_proj(x)
        down = self.down_proj
        if type(down) is CpuLinear and down.bias is None and _are_plain_fp32(gate, up, down.weight):
            return silu_gate_down(gate, up, down.weight)
        adapted: Tensor = down(silu_gate(gate, up) if _are_plain_fp32(gate, up) else silu(gate) * up)
        return adapted


def _are_plain_fp32(*tensors: Tensor) -> bool:
    """Return True when all tensors are fp32 and of no tensor subclass (sharded, traced)."""
    return all(each.dtype is torch.float32 and type(each) in (Tensor, nn.Parameter) for each in tensors)


def _fused_class(module: nn.Module) -> type[nn.Module] | None:
    """Return the module's class with the fused forward pass; None when the module is not of the known
    form.
    """
    kind = type(module)
    weight, width = getattr(module, "weight", None), None
    mixin: type[nn.Module]
    if (
        isinstance(weight, nn.Parameter)
        and weight.dim() == 1
        and isinstance(getattr(module, "variance_epsilon", None), float)
        and getattr(module, "bias", None) is None
    ):
        mixin, width = _FusedNorm, weight.shape[0]
    elif all(hasattr(module, name) for name in ("gate_proj", "up_proj", "down_proj", "act_fn")):
        gate = module.gate_proj
        mixin, width = _FusedMlp, getattr(gate, "in_features", None)
    if width is None or next(module.parameters()).dtype is not torch.float32:
        return None
    fused = _mixed_class(mixin, kind)
    return fused if _has_same_outputs(module, fused, width) else None


def _mixed_class(mixin: type[nn.Module], kind: type[nn.Module]) -> type[nn.Module]:
    """Return one class for each original class, so that the layers of two models share a class."""
    if kind not in _FUSED_CLASSES:
        _FUSED_CLASSES[kind] = type(f"Lean{kind.__name__}", (mixin, kind), {})
    return _FUSED_CLASSES[kind]


@torch.no_grad()
def _has_same_outputs(module: nn.Module, lean: type[nn.Module], width: int) -> bool:
    """Return True when both forward passes give the same outputs for three tokens."""
    x = torch.randn(1, 3, width, generator=torch.Generator().manual_seed(0))
    kind = type(module)
    try:
        expected = module(x)
        module.__class__ = lean
        actual = module(x)
    except (TypeError, ValueError, RuntimeError, AttributeError):
        return False  # the module takes other arguments, or has other attributes
    finally:
        module.__class__ = kind
    return isinstance(expected, Tensor) and bool(
        torch.allclose(actual, expected, rtol=1e-5, atol=1e-6 * float(expected.abs().max()))
    )


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        scale = torch.rsqrt(x.square().mean(-1, keepdim=True).add_(epsilon))
        ctx.save_for_backward(x, weight, scale)
        return (x * scale).mul_(weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        """With n = x / rms(x): d x = (g w - n mean(g w n)) / rms(x), d w = sum of g n over the tokens."""
        x, weight, scale = ctx.saved_tensors
        normed = x * scale
        product_ = gradient * normed
        to_weight = product_.flatten(0, -2).sum(0) if ctx.needs_input_grad[1] else None
        if not ctx.needs_input_grad[0]:
            return None, to_weight, None
        mean = product_.matmul(weight).div_(weight.shape[0])[..., None]
        return normed.mul_(mean).neg_().addcmul_(gradient, weight).mul_(scale), to_weight, None


class _SiluGate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        gate, up = gate.contiguous(), up.contiguous()
        ctx.save_for_backward(gate, up)
        return _silu_gate_forward(gate, up)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        gate, up = ctx.saved_tensors
        # The incoming gradient belongs to autograd and is overwritten below: clone it.
        to_gate, to_up, _ = _silu_gate_backward(
            gate, up, gradient.clone(memory_format=torch.contiguous_format), False
        )
        return to_gate, to_up


class _SiluGateDown(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor, weight: Tensor) -> Tensor:
        gate, up = gate.contiguous(), up.contiguous()
        ctx.save_for_backward(gate, up, weight)
        return linear_no_grad(_silu_gate_forward(gate, up), weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        gate, up, weight = ctx.saved_tensors
        to_gate, to_up, hidden = _silu_gate_backward(
            gate, up, linear_no_grad(gradient, weight.T), ctx.needs_input_grad[2]
        )
        to_weight = (
            None if hidden is None else linear_no_grad(gradient.flatten(0, -2).T, hidden.flatten(0, -2).T)
        )
        return to_gate, to_up, to_weight


def _silu_gate_forward(gate: Tensor, up: Tensor) -> Tensor:
    out = torch.empty_like(gate)
    for g, u, o in _row_blocks(gate, up, out):
        torch.mul(silu(g), u, out=o)
    return out


def _silu_gate_backward(
    gate: Tensor, up: Tensor, gradient: Tensor, with_product: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the gradients of gate and up, and silu(gate) * up when requested.

        silu(x) = x s(x)        silu'(x) = s(x) (1 + x (1 - s(x)))        s the logistic function

    Args:
        gradient: Gradient of the product; overwritten with the gradient of up.
    """
    to_gate = torch.empty_like(gate)
    hidden = torch.empty_like(gate) if with_product else None
    for g, u, d, o, *p in _row_blocks(gate, up, gradient, to_gate, *([hidden] if hidden is not None else [])):
        sigmoid_gate = torch.sigmoid(g)
        active = g * sigmoid_gate
        if p:
            torch.mul(active, u, out=p[0])
        slope = sigmoid_gate.addcmul_(active, 1 - sigmoid_gate)
        torch.mul(slope.mul_(u), d, out=o)
        d.mul_(active)
    return to_gate, gradient, hidden


def _row_blocks(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Yield views of a block of rows of each tensor: on a CPU as many rows as its caches hold."""
    rows = [each.view(-1, each.shape[-1]) for each in tensors]
    count, width = rows[0].shape
    size = max(1, _CACHED // width) if tensors[0].device.type == "cpu" else max(1, count)
    for first in range(0, count, size):
        yield tuple(each[first : first + size] for each in rows)
