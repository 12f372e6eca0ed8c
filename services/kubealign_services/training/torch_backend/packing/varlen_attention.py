"""Attention over packed sequences without padding, by torch's FlashAttention kernels for ragged lengths (Dao
2023).

Used on CUDA in half precision when a trial on the device matches `scaled_dot_product_attention`; otherwise
`packed_attention` pads.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from kubealign_services.training.torch_backend.packing.shared_prompts import SharedPack

_TOLERANCE = 0.02


@dataclass(frozen=True)
class RaggedLayout:
    """Boundaries of the sequences.

    Attributes:
        offsets: int32 [S + 1] on the device.
        max_length: Tokens of the longest sequence.
        pack_indices: int64 [T], indices of the sequences' tokens in a pack that stores shared prompts once;
            None when the pack is the sequences.
        computed_indices: int64 [U], the sequences' tokens that the pack stores; None likewise.
    """

    offsets: Tensor
    max_length: int
    pack_indices: Tensor | None
    computed_indices: Tensor | None


def plan_ragged(cu_seqlens: Tensor, device: torch.device, shared: SharedPack | None) -> RaggedLayout | None:
    """Return the layout for the kernel; None on a CPU."""
    if device.type != "cuda":
        return None
    longest = int((cu_seqlens[1:] - cu_seqlens[:-1]).max())
    places, computed = (
        (None, None)
        if shared is None
        else (shared.pack_indices.to(device), shared.computed_indices.to(device))
    )
    return RaggedLayout(cu_seqlens.to(device), longest, places, computed)


def can_run(query: Tensor, dropout: float) -> bool:
    """Return True when the kernel supports these inputs.

    Args:
        query: [T, heads, d].
    """
    return (
        query.device.type == "cuda"
        and query.dtype in (torch.bfloat16, torch.float16)
        and dropout == 0
        and query.shape[-1] % 8 == 0
        and _matches_plain_attention(query.device, query.dtype, query.shape[-1])
    )


def ragged_attention(
    plan: RaggedLayout, query: Tensor, key: Tensor, value: Tensor, scaling: float | None, window: int | None
) -> Tensor:
    """Compute the attention of the packed sequences. Returns [U, heads, d].

    Args:
        query: [U, heads, d].
        key, value: [U, kv heads, d].
        window: Number of tokens that a token sees, itself included; None for all before it.
    """
    if plan.pack_indices is not None:
        query, key, value = query[plan.pack_indices], key[plan.pack_indices], value[plan.pack_indices]
    # Not by cuDNN, which torch prefers on some devices: it compiles anew for each new shape of a micro-batch.
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        output: Tensor = _varlen_kernel()(
            query.contiguous(),
            key.contiguous(),
            value.contiguous(),
            plan.offsets,
            plan.offsets,
            plan.max_length,
            plan.max_length,
            scale=scaling,
            window_size=(-1 if window is None else window - 1, 0),
            enable_gqa=query.shape[1] != key.shape[1],
        )
    return output if plan.computed_indices is None else output[plan.computed_indices]


@cache
def _varlen_kernel() -> Callable[..., Any]:
    """Return torch's kernel. Raises ImportError when torch has none."""
    from torch.nn.attention.varlen import varlen_attn

    return varlen_attn


@cache
def _matches_plain_attention(device: torch.device, dtype: torch.dtype, size: int) -> bool:
    """Return True when outputs and gradients on the device match plain attention, on two sequences that must
    not attend to each other, with grouped heads.
    """
    lengths = (5, 3)
    generator = torch.Generator().manual_seed(0)
    drawn = [torch.randn(sum(lengths), heads, size, generator=generator) for heads in (4, 2, 2)]
    offsets = torch.tensor([0, 5, 8], dtype=torch.int32, device=device)
    actual, expected = ([each.to(device, dtype).requires_grad_() for each in drawn] for _ in range(2))
    try:
        with torch.enable_grad():
            plan = RaggedLayout(offsets, max(lengths), None, None)
            out = ragged_attention(plan, actual[0], actual[1], actual[2], None, None)
            out.float().square().sum().backward()  # type: ignore[no-untyped-call]
    except (ImportError, RuntimeError, ValueError, TypeError):
        return False
    with torch.enable_grad():
        plain = torch.cat(
            [_plain_attention(*(each[rows] for each in expected)) for rows in (slice(0, 5), slice(5, 8))]
        )
        plain.float().square().sum().backward()  # type: ignore[no-untyped-call]
    pairs = [(out, plain), *((one.grad, other.grad) for one, other in zip(actual, expected, strict=True))]
    with torch.no_grad():
        return _are_close(pairs)


def _are_close(pairs: Sequence[tuple[Tensor | None, Tensor | None]]) -> bool:
    return all(
        one is not None
        and other is not None
        and float((one - other).float().norm()) <= _TOLERANCE * float(other.float().norm())
        for one, other in pairs
    )


def _plain_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    q, k, v = (each.transpose(0, 1)[None] for each in (query, key, value))
    return scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)[0].transpose(0, 1)
