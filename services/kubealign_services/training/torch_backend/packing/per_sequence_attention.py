"""Attention over packed sequences of different lengths on a CPU: one call of torch's own kernel for each
sequence, on views of the pack. The kernel divides the work among threads by heads and rows. Nothing is
gathered, padded or scattered; gradients are written in place.

This is the kernel of `scaled_dot_product_attention`, without the backward pass that autograd builds for a
slice: a gradient of the whole pack, all zeros outside the slice.
"""

from functools import cache
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import scaled_dot_product_attention

# Mean sequence length from which a call for each sequence is faster than blocks of similar lengths.
_MIN_MEAN_TOKENS = 32


def is_worth_per_sequence_calls(offsets: list[int]) -> bool:
    """Return True when the sequences are long enough for a call each.

    Args:
        offsets: [S + 1].
    """
    return offsets[-1] >= _MIN_MEAN_TOKENS * (len(offsets) - 1)


def can_run(query: Tensor, key: Tensor, value: Tensor, offsets: list[int], dropout: float) -> bool:
    """Return True when the kernel supports these inputs.

    Args:
        query: [T, heads, d].
        key, value: [T, kv heads, d].
        offsets: [S + 1].
    """
    return (
        query.device.type == "cpu"
        and query.dtype in (torch.float32, torch.float64, torch.bfloat16)
        and query.shape == key.shape == value.shape
        and all(type(states) is Tensor and states.stride(-1) == 1 for states in (query, key, value))
        and dropout == 0
        and offsets[-1] == query.shape[0]
        and is_worth_per_sequence_calls(offsets)
        and not torch.compiler.is_compiling()
        and _kernel_works(query.dtype)
    )


def per_sequence_attention(
    query: Tensor, key: Tensor, value: Tensor, offsets: list[int], scaling: float | None
) -> Tensor:
    """Compute causal attention within each sequence. Returns [T, heads, d]. Differentiable once.

    Args:
        query, key, value: [T, heads, d].
        offsets: [S + 1], boundaries of the sequences.
    """
    output: Tensor = _PerSequenceAttention.apply(query, key, value, offsets, scaling)
    return output


class _PerSequenceAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, offsets: list[int], scaling: float | None
    ) -> Tensor:
        out = torch.empty(query.shape, dtype=query.dtype)
        normalisers = []
        for rows in _sequence_slices(offsets):
            q, k, v = (_sequence_view(states, rows) for states in (query, key, value))
            output, normaliser = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
                q, k, v, 0.0, True, scale=scaling
            )
            _sequence_view(out, rows).copy_(output)
            normalisers.append(normaliser)
        ctx.save_for_backward(query, key, value, out, *normalisers)
        ctx.offsets, ctx.scaling = offsets, scaling
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        query, key, value, out, *normalisers = ctx.saved_tensors
        gradients = [torch.empty(query.shape, dtype=query.dtype) for _ in range(3)]
        for rows, normaliser in zip(_sequence_slices(ctx.offsets), normalisers, strict=True):
            q, k, v, o, g = (_sequence_view(states, rows) for states in (query, key, value, out, gradient))
            parts = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
                g, q, k, v, o, normaliser, 0.0, True, scale=ctx.scaling
            )
            for target, part in zip(gradients, parts, strict=True):
                _sequence_view(target, rows).copy_(part)
        return gradients[0], gradients[1], gradients[2], None, None


def _sequence_slices(offsets: list[int]) -> list[slice]:
    return [slice(start, end) for start, end in pairwise(offsets)]


def _sequence_view(states: Tensor, rows: slice) -> Tensor:
    """Return a view [1, heads, rows, d] of [T, heads, d]."""
    return states[rows].transpose(0, 1)[None]


@cache
def _kernel_works(dtype: torch.dtype) -> bool:
    """Return True when this torch has the kernel, and its outputs and gradients match
    `scaled_dot_product_attention` on two sequences that must not attend to each other.
    """
    generator = torch.Generator().manual_seed(0)
    drawn = [torch.randn(8, 2, 8, generator=generator) for _ in range(3)]
    ours, theirs = ([each.to(dtype).requires_grad_() for each in drawn] for _ in range(2))
    tolerance = 1e-5 if dtype in (torch.float32, torch.float64) else 0.05
    try:
        with torch.enable_grad():
            actual = per_sequence_attention(ours[0], ours[1], ours[2], [0, 5, 8], 0.3)
            actual.float().square().sum().backward()  # type: ignore[no-untyped-call]
    except (AttributeError, RuntimeError, TypeError, ValueError):
        return False
    with torch.enable_grad():
        pieces = []
        for rows in _sequence_slices([0, 5, 8]):
            q, k, v = (_sequence_view(states, rows) for states in theirs)
            pieces.append(scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.3))
        expected = torch.cat(pieces, dim=2)[0].transpose(0, 1)
        expected.float().square().sum().backward()  # type: ignore[no-untyped-call]
    pairs = [(actual, expected), *((one.grad, other.grad) for one, other in zip(ours, theirs, strict=True))]
    return all(
        one is not None and other is not None and bool(torch.allclose(one, other, tolerance, tolerance))
        for one, other in pairs
    )
