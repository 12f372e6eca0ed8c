"""Attention over packed sequences of different lengths on a CPU: each where it lies in the pack, by torch's
own kernel, which parts the work among threads by heads and rows. Nothing is gathered, padded or scattered;
the gradients are written where they belong.

It is `scaled_dot_product_attention`'s kernel, called without what that function makes of a slice in the
backward pass: a gradient of the whole pack, all zeros but for the slice.
"""

from functools import cache
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import scaled_dot_product_attention

# Tokens of a mean sequence from which a call for each is quicker than blocks of similar ones.
_WORTH_A_CALL = 32


def worth_calls(offsets: list[int]) -> bool:
    """offsets: [S + 1]. Whether the sequences are long enough for a call each."""
    return offsets[-1] >= _WORTH_A_CALL * (len(offsets) - 1)


def can_run(query: Tensor, key: Tensor, value: Tensor, offsets: list[int], dropout: float) -> bool:
    """query: [T, heads, d], key and value [T, kv heads, d]; offsets: [S + 1]."""
    return (
        query.device.type == "cpu"
        and query.dtype in (torch.float32, torch.float64, torch.bfloat16)
        and query.shape == key.shape == value.shape
        and all(type(states) is Tensor and states.stride(-1) == 1 for states in (query, key, value))
        and dropout == 0
        and offsets[-1] == query.shape[0]
        and worth_calls(offsets)
        and not torch.compiler.is_compiling()
        and _works(query.dtype)
    )


def attention(query: Tensor, key: Tensor, value: Tensor, offsets: list[int], scaling: float | None) -> Tensor:
    """query, key, value: [T, heads, d]; offsets: [S + 1], where the sequences begin and end. Causal, each
    within itself -> [T, heads, d]. Can be differentiated once."""
    found: Tensor = _Attention.apply(query, key, value, offsets, scaling)
    return found


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, offsets: list[int], scaling: float | None
    ) -> Tensor:
        out = torch.empty(query.shape, dtype=query.dtype)
        kept = []
        for rows in _sequences(offsets):
            q, k, v = (_of(states, rows) for states in (query, key, value))
            found, normaliser = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
                q, k, v, 0.0, True, scale=scaling
            )
            _of(out, rows).copy_(found)
            kept.append(normaliser)
        ctx.save_for_backward(query, key, value, out, *kept)
        ctx.offsets, ctx.scaling = offsets, scaling
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        query, key, value, out, *kept = ctx.saved_tensors
        found = [torch.empty(query.shape, dtype=query.dtype) for _ in range(3)]
        for rows, normaliser in zip(_sequences(ctx.offsets), kept, strict=True):
            q, k, v, o, g = (_of(states, rows) for states in (query, key, value, out, gradient))
            parts = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
                g, q, k, v, o, normaliser, 0.0, True, scale=ctx.scaling
            )
            for whole, part in zip(found, parts, strict=True):
                _of(whole, rows).copy_(part)
        return found[0], found[1], found[2], None, None


def _sequences(offsets: list[int]) -> list[slice]:
    return [slice(start, end) for start, end in pairwise(offsets)]


def _of(states: Tensor, rows: slice) -> Tensor:
    """[T, heads, d] -> [1, heads, rows, d], a view."""
    return states[rows].transpose(0, 1)[None]


@cache
def _works(dtype: torch.dtype) -> bool:
    """Whether this torch has the kernel, and values and gradients are those of
    `scaled_dot_product_attention`, on two sequences of which each must not see the other."""
    generator = torch.Generator().manual_seed(0)
    drawn = [torch.randn(8, 2, 8, generator=generator) for _ in range(3)]
    ours, theirs = ([each.to(dtype).requires_grad_() for each in drawn] for _ in range(2))
    tolerance = 1e-5 if dtype in (torch.float32, torch.float64) else 0.05
    try:
        with torch.enable_grad():
            found = attention(ours[0], ours[1], ours[2], [0, 5, 8], 0.3)
            found.float().square().sum().backward()  # type: ignore[no-untyped-call]
    except (AttributeError, RuntimeError, TypeError, ValueError):
        return False
    with torch.enable_grad():
        pieces = []
        for rows in _sequences([0, 5, 8]):
            q, k, v = (_of(states, rows) for states in theirs)
            pieces.append(scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.3))
        wanted = torch.cat(pieces, dim=2)[0].transpose(0, 1)
        wanted.float().square().sum().backward()  # type: ignore[no-untyped-call]
    pairs = [(found, wanted), *((one.grad, other.grad) for one, other in zip(ours, theirs, strict=True))]
    return all(
        one is not None and other is not None and bool(torch.allclose(one, other, tolerance, tolerance))
        for one, other in pairs
    )
