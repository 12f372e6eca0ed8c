"""Layers of a trunk that keep less for the backward pass than torch would, and pass fewer times over memory.

RMSNorm (Zhang and Sennrich 2019) and the gated MLP with SiLU (Shazeer 2020), as most trunks have them. What
is cheap to compute again is: of a norm its input is kept, of an MLP the two projections. In fp32 only: lower
precisions round between the steps, each model class in its own way.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import silu

from kubealign_services.training.torch_backend.cpu_linear import CpuLinear, product

# Numbers that a CPU's caches hold a few times: 1 MiB in fp32.
_CACHED = 1 << 18

_MIXED: dict[type[nn.Module], type[nn.Module]] = {}


def use_lean_layers(model: nn.Module) -> None:
    """Exchange, in place, the forward pass of each norm and MLP that is of the known form, which a trial
    shows; others stay as they are. Names, parameters and numbers stay. The model is on the CPU, in evaluation
    mode."""
    known: dict[type[nn.Module], type[nn.Module] | None] = {}
    for module in list(model.modules()):
        kind = type(module)
        if kind not in known:
            known[kind] = _lean(module)
        lean = known[kind]
        if lean is not None:
            module.__class__ = lean


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """x [..., H], weight [H] -> x / sqrt(mean of its squares + epsilon) * weight."""
    found: Tensor = _RmsNorm.apply(x, weight, epsilon)
    return found


def gated(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) * up, all of one shape."""
    found: Tensor = _Gated.apply(gate, up)
    return found


def gated_down(gate: Tensor, up: Tensor, weight: Tensor) -> Tensor:
    """gate, up [..., I], weight [H, I] -> (silu(gate) * up) W^T, [..., H]. The product is not kept."""
    found: Tensor = _GatedDown.apply(gate, up, weight)
    return found


class _LeanNorm(nn.Module):
    """Mixed in before a model's own class."""

    weight: nn.Parameter
    variance_epsilon: float

    def forward(self, hidden_states: Tensor) -> Tensor:
        if _plain(hidden_states, self.weight):
            return rms_norm(hidden_states, self.weight, self.variance_epsilon)
        found: Tensor = super().forward(hidden_states)
        return found


class _LeanMlp(nn.Module):
    """Mixed in before a model's own class. Projections may be adapted."""

    gate_proj: nn.Module
    up_proj: nn.Module
    down_proj: nn.Module

    def forward(self, x: Tensor) -> Tensor:
        if not _plain(x):
            found: Tensor = super().forward(x)
            return found
        gate, up = self.gate_proj(x), self.up_proj(x)
        down = self.down_proj
        if type(down) is CpuLinear and down.bias is None and _plain(gate, up, down.weight):
            return gated_down(gate, up, down.weight)
        adapted: Tensor = down(gated(gate, up) if _plain(gate, up) else silu(gate) * up)
        return adapted


def _plain(*tensors: Tensor) -> bool:
    """Whether they are fp32, and nobody's subclass (sharded, traced)."""
    return all(each.dtype is torch.float32 and type(each) in (Tensor, nn.Parameter) for each in tensors)


def _lean(module: nn.Module) -> type[nn.Module] | None:
    """The module's class with the lean forward pass; None where it is not of the known form."""
    kind = type(module)
    weight, width = getattr(module, "weight", None), None
    mixin: type[nn.Module]
    if (
        isinstance(weight, nn.Parameter)
        and weight.dim() == 1
        and isinstance(getattr(module, "variance_epsilon", None), float)
        and getattr(module, "bias", None) is None
    ):
        mixin, width = _LeanNorm, weight.shape[0]
    elif all(hasattr(module, name) for name in ("gate_proj", "up_proj", "down_proj", "act_fn")):
        gate = module.gate_proj
        mixin, width = _LeanMlp, getattr(gate, "in_features", None)
    if width is None or next(module.parameters()).dtype is not torch.float32:
        return None
    lean = _mixed(mixin, kind)
    return lean if _agrees(module, lean, width) else None


def _mixed(mixin: type[nn.Module], kind: type[nn.Module]) -> type[nn.Module]:
    """One class for each kind, so that two models' layers are of one class."""
    if kind not in _MIXED:
        _MIXED[kind] = type(f"Lean{kind.__name__}", (mixin, kind), {})
    return _MIXED[kind]


@torch.no_grad()
def _agrees(module: nn.Module, lean: type[nn.Module], width: int) -> bool:
    """Whether both forward passes give the same of three tokens."""
    x = torch.randn(1, 3, width, generator=torch.Generator().manual_seed(0))
    kind = type(module)
    try:
        wanted = module(x)
        module.__class__ = lean
        found = module(x)
    except (TypeError, ValueError, RuntimeError, AttributeError):
        return False  # it takes other arguments, or has other parts
    finally:
        module.__class__ = kind
    return isinstance(wanted, Tensor) and bool(
        torch.allclose(found, wanted, rtol=1e-5, atol=1e-6 * float(wanted.abs().max()))
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


class _Gated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        gate, up = gate.contiguous(), up.contiguous()
        ctx.save_for_backward(gate, up)
        return _forward(gate, up)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        gate, up = ctx.saved_tensors
        # A gradient that is given belongs to autograd, and is overwritten below.
        to_gate, to_up, _ = _backward(gate, up, gradient.clone(memory_format=torch.contiguous_format), False)
        return to_gate, to_up


class _GatedDown(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor, weight: Tensor) -> Tensor:
        gate, up = gate.contiguous(), up.contiguous()
        ctx.save_for_backward(gate, up, weight)
        return product(_forward(gate, up), weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        gate, up, weight = ctx.saved_tensors
        to_gate, to_up, hidden = _backward(gate, up, product(gradient, weight.T), ctx.needs_input_grad[2])
        to_weight = None if hidden is None else product(gradient.flatten(0, -2).T, hidden.flatten(0, -2).T)
        return to_gate, to_up, to_weight


def _forward(gate: Tensor, up: Tensor) -> Tensor:
    out = torch.empty_like(gate)
    for g, u, o in _blocks(gate, up, out):
        torch.mul(silu(g), u, out=o)
    return out


def _backward(
    gate: Tensor, up: Tensor, gradient: Tensor, with_product: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """The gradients of gate and up, and silu(gate) * up where it is wanted. gradient: of that product; it
    becomes up's.

        silu(x) = x s(x)        silu'(x) = s(x) (1 + x (1 - s(x)))        s the logistic function
    """
    to_gate = torch.empty_like(gate)
    found = torch.empty_like(gate) if with_product else None
    for g, u, d, o, *p in _blocks(gate, up, gradient, to_gate, *([found] if found is not None else [])):
        share = torch.sigmoid(g)
        active = g * share
        if p:
            torch.mul(active, u, out=p[0])
        slope = share.addcmul_(active, 1 - share)
        torch.mul(slope.mul_(u), d, out=o)
        d.mul_(active)
    return to_gate, gradient, found


def _blocks(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Some rows of each at a time, as views: on a CPU as many as its caches hold."""
    rows = [each.view(-1, each.shape[-1]) for each in tensors]
    count, width = rows[0].shape
    size = max(1, _CACHED // width) if tensors[0].device.type == "cpu" else max(1, count)
    for first in range(0, count, size):
        yield tuple(each[first : first + size] for each in rows)
