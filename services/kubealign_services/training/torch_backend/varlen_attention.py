"""Attention over packed sequences without any padding, by FlashAttention's kernels for ragged lengths (Dao
2023), as torch has them. On CUDA in half precision, where a trial on the device finds what
`scaled_dot_product_attention` finds; elsewhere `packed_attention` pads.

Not yet seen on a GPU.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from kubealign_services.training.torch_backend.shared_prompts import SharedPack

_TOLERANCE = 0.02


@dataclass(frozen=True)
class Ragged:
    """Where the sequences lie. offsets: int32 [S + 1] on the device. longest: tokens. places: int64 [T],
    where the sequences' tokens stand in a pack that holds prompts once, and kept: int64 [U], the sequences'
    tokens that it holds; None: the pack is the sequences."""

    offsets: Tensor
    longest: int
    places: Tensor | None
    kept: Tensor | None


def plan_ragged(cu_seqlens: Tensor, device: torch.device, shared: SharedPack | None) -> Ragged | None:
    """None on a CPU."""
    if device.type != "cuda":
        return None
    longest = int((cu_seqlens[1:] - cu_seqlens[:-1]).max())
    places, kept = (None, None) if shared is None else (shared.places.to(device), shared.kept.to(device))
    return Ragged(cu_seqlens.to(device), longest, places, kept)


def can_run(query: Tensor, dropout: float) -> bool:
    """query: [T, heads, d]."""
    return (
        query.device.type == "cuda"
        and query.dtype in (torch.bfloat16, torch.float16)
        and dropout == 0
        and query.shape[-1] % 8 == 0
        and _agrees(query.device, query.dtype, query.shape[-1])
    )


def ragged_attention(
    plan: Ragged, query: Tensor, key: Tensor, value: Tensor, scaling: float | None, window: int | None
) -> Tensor:
    """query [U, heads, d], key and value [U, kv heads, d] -> [U, heads, d]. window: how many tokens a token
    sees, itself among them; None: all before it."""
    if plan.places is not None:
        query, key, value = query[plan.places], key[plan.places], value[plan.places]
    found: Tensor = _kernel()(
        query.contiguous(),
        key.contiguous(),
        value.contiguous(),
        plan.offsets,
        plan.offsets,
        plan.longest,
        plan.longest,
        scale=scaling,
        window_size=(-1 if window is None else window - 1, 0),
        enable_gqa=query.shape[1] != key.shape[1],
    )
    return found if plan.kept is None else found[plan.kept]


@cache
def _kernel() -> Callable[..., Any]:
    """Raises ImportError where torch has none."""
    from torch.nn.attention.varlen import varlen_attn

    return varlen_attn


@cache
def _agrees(device: torch.device, dtype: torch.dtype, size: int) -> bool:
    """Whether values and gradients on the device are those of plain attention, on two sequences of which each
    must not see the other, with grouped heads."""
    lengths = (5, 3)
    generator = torch.Generator().manual_seed(0)
    drawn = [torch.randn(sum(lengths), heads, size, generator=generator) for heads in (4, 2, 2)]
    offsets = torch.tensor([0, 5, 8], dtype=torch.int32, device=device)
    found, wanted = ([each.to(device, dtype).requires_grad_() for each in drawn] for _ in range(2))
    try:
        with torch.enable_grad():
            plan = Ragged(offsets, max(lengths), None, None)
            out = ragged_attention(plan, found[0], found[1], found[2], None, None)
            out.float().square().sum().backward()  # type: ignore[no-untyped-call]
    except (ImportError, RuntimeError, ValueError, TypeError):
        return False
    with torch.enable_grad():
        plain = torch.cat([_plain(*(each[rows] for each in wanted)) for rows in (slice(0, 5), slice(5, 8))])
        plain.float().square().sum().backward()  # type: ignore[no-untyped-call]
    pairs = [(out, plain), *((one.grad, other.grad) for one, other in zip(found, wanted, strict=True))]
    return all(
        one is not None
        and other is not None
        and float((one - other).float().norm()) <= _TOLERANCE * float(other.float().norm())
        for one, other in pairs
    )


def _plain(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    q, k, v = (each.transpose(0, 1)[None] for each in (query, key, value))
    return scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)[0].transpose(0, 1)
