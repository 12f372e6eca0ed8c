"""Attention over packed sequences: each sees itself alone, without a mask over the whole pack.

The function is registered with transformers as `kubealign_packed`, so that any model whose attention goes
through its `AttentionInterface` runs packed. Which token belongs to which sequence is told by an
`AttentionPlan` among the model's keyword arguments (not by a global: gradient checkpointing calls the layers
again later). Sequences of similar lengths are gathered into right-padded blocks for
`scaled_dot_product_attention`; padding stands right of every real token, where causality hides it. Where a
kernel can take the sequences as they lie, there are no blocks (`varlen_attention`, `sequence_attention`).
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface

from kubealign_services.training.torch_backend import sequence_attention
from kubealign_services.training.torch_backend.shared_prompts import SharedPack
from kubealign_services.training.torch_backend.varlen_attention import (
    Ragged,
    can_run,
    plan_ragged,
    ragged_attention,
)

#: The name under which transformers knows it (`attn_implementation`).
PACKED = "kubealign_packed"

#: The keyword under which models hand the plan through to their attention.
PLAN = "kubealign_plan"

# A block is closed when the next sequence would be padded by more than this share of the block's width.
_PADDING = 0.25

_UNHEARD = ("softcap", "s_aux", "position_bias", "head_mask")


class UnsupportedModel(ValueError):
    """The model cannot run packed. The message says what it asks for."""


@dataclass(frozen=True)
class Block:
    """Sequences of similar lengths. gather: int64 [sequences, width], the pack's token at each place of the
    block. start: the first of them where they stand in the pack as in the block; None where they do not."""

    gather: Tensor
    start: int | None = None

    def of(self, states: Tensor) -> Tensor:
        """[T, heads, d] of the pack -> [sequences, width, heads, d]; a view where it can be."""
        if self.start is None:
            return states[self.gather]
        run = states[self.start : self.start + self.gather.numel()]
        return run.view(*self.gather.shape, *states.shape[1:])


@dataclass(frozen=True)
class AttentionPlan:
    """blocks hold every token, beside padding. scatter: int64 [T], a place of each token among the blocks'
    places, flattened; None: each token stands at its own. ragged: for a kernel that needs no blocks. offsets:
    [S + 1], where the sequences begin and end in the pack, if they lie there one after another, of different
    lengths, long enough for a call of a kernel each."""

    blocks: list[Block]
    scatter: Tensor | None
    ragged: Ragged | None = None
    offsets: list[int] | None = None


def plan_attention(
    cu_seqlens: Tensor, device: torch.device, shared: SharedPack | None = None
) -> AttentionPlan:
    """cu_seqlens: int32 [S + 1] on the CPU, S at least 1. The plan's tensors are on `device`. shared: where
    the sequences' tokens stand in a pack that holds their prompts once; None: one after another."""
    lengths = (cu_seqlens[1:] - cu_seqlens[:-1]).tolist()
    starts = cu_seqlens[:-1].tolist()
    blocks: list[Block] = []
    scatter = torch.empty(int(cu_seqlens[-1]), dtype=torch.int64)
    places = 0
    for members in _similar(lengths):
        width = lengths[members[0]]
        length = torch.tensor([lengths[i] for i in members])[:, None]
        column = torch.arange(width)[None, :]
        gather = torch.tensor([starts[i] for i in members])[:, None] + torch.minimum(column, length - 1)
        place = places + torch.arange(gather.numel()).view_as(gather)
        real = column < length
        scatter[gather[real]] = place[real]
        places += gather.numel()
        if shared is not None:
            gather = shared.places[gather]
        first = int(gather[0, 0])
        is_run = bool((gather.flatten() == torch.arange(first, first + gather.numel())).all())
        blocks.append(Block(gather.to(device), first if is_run else None))
    if shared is not None:
        scatter = scatter[shared.kept]
    in_order = len(blocks) == 1 and blocks[0].start is not None
    ragged = plan_ragged(cu_seqlens, device, shared)
    if in_order:
        return AttentionPlan(blocks, None, ragged)
    offsets = cu_seqlens.tolist()
    lie_whole = shared is None and sequence_attention.worth_calls(offsets)
    return AttentionPlan(blocks, scatter.to(device), ragged, offsets if lie_whole else None)


def _similar(lengths: list[int]) -> list[list[int]]:
    """Sequences grouped by length, the longest of each group first."""
    groups: list[list[int]] = []
    for sequence in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        if groups and lengths[sequence] >= (1 - _PADDING) * lengths[groups[-1][0]]:
            groups[-1].append(sequence)
        else:
            groups.append([sequence])
    return groups


def packed_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """query [1, heads, T, d], key and value [1, kv heads, T, d] -> ([1, T, heads, d], None).

    Raises UnsupportedModel where the model wants something that this does not do (soft caps, sinks, masks of
    its own).
    """
    plan = kwargs.get(PLAN)
    if not isinstance(plan, AttentionPlan):
        raise UnsupportedModel(
            f"{type(module).__name__} was not given {PLAN}: its model keeps keyword arguments to itself"
        )
    wanted = [name for name in _UNHEARD if kwargs.get(name) is not None]
    if attention_mask is not None:
        wanted.append("an attention mask")
    if not (getattr(module, "is_causal", True) and kwargs.get("is_causal", True) is not False):
        wanted.append("attention that is not causal")
    if wanted:
        raise UnsupportedModel(
            f"{type(module).__name__} asks for {', '.join(wanted)}, which packed attention does not do"
        )
    repeats = query.shape[1] // key.shape[1]
    query, key, value = (states[0].transpose(0, 1) for states in (query, key, value))
    if plan.ragged is not None and can_run(query, dropout):
        found = ragged_attention(plan.ragged, query, key, value, scaling, sliding_window)
        return found[None], None
    offsets = plan.offsets
    if offsets is not None and _sees_all(offsets, sliding_window):
        heads = query, *_repeated(key, value, repeats)
        if sequence_attention.can_run(*heads, offsets, dropout):
            return sequence_attention.attention(*heads, offsets, scaling)[None], None
    pieces = [
        _block(block, query, key, value, repeats, dropout, scaling, sliding_window) for block in plan.blocks
    ]
    found = pieces[0] if len(pieces) == 1 else torch.cat(pieces)
    return (found if plan.scatter is None else found[plan.scatter])[None], None


def _repeated(key: Tensor, value: Tensor, repeats: int) -> tuple[Tensor, Tensor]:
    """Heads, the second dimension, as many as queries have."""
    if repeats == 1:
        return key, value
    return key.repeat_interleave(repeats, dim=1), value.repeat_interleave(repeats, dim=1)


def _sees_all(offsets: list[int], window: int | None) -> bool:
    """Whether no sequence is longer than what its last token sees."""
    return window is None or max(end - start for start, end in pairwise(offsets)) <= window


def _block(
    block: Block,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    repeats: int,
    dropout: float,
    scaling: float | None,
    sliding_window: int | None,
) -> Tensor:
    """[T, heads, d] of the pack -> [sequences * width, heads, d] of one block."""
    q, k, v = (block.of(states).transpose(1, 2) for states in (query, key, value))
    k, v = _repeated(k, v, repeats)
    width = block.gather.shape[1]
    mask = None
    if sliding_window is not None and width > sliding_window:
        place = torch.arange(width, device=query.device)
        distance = place[:, None] - place[None, :]
        mask = (distance >= 0) & (distance < sliding_window)
    out = scaled_dot_product_attention(
        q, k, v, attn_mask=mask, dropout_p=dropout, is_causal=mask is None, scale=scaling
    )
    return out.transpose(1, 2).flatten(0, 1)


def _no_mask(use_vmap: bool = False, **_: Any) -> None:
    """No mask is built; a model that lays its own over the causal one is refused."""
    if use_vmap:
        raise UnsupportedModel(
            "the model lays a mask of its own over the causal one, which packed attention does not do"
        )


AttentionInterface.register(PACKED, packed_attention)
AttentionMaskInterface.register(PACKED, _no_mask)
