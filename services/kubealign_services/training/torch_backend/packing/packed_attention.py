"""Attention over packed sequences: each sequence attends to itself alone, without a mask over the whole pack.

The function is registered with transformers as `kubealign_packed`, so that any model whose attention goes
through its `AttentionInterface` runs packed. A `PackedAttentionPlan` among the model's keyword arguments maps
tokens to sequences (not a global: gradient checkpointing calls the layers again later). Sequences of similar
lengths are gathered into right-padded blocks for `scaled_dot_product_attention`; padding is right of every
real token, where causality hides it. No blocks are needed when a kernel accepts the packed sequences directly
(`varlen_attention`, `per_sequence_attention`).
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface

from kubealign_services.training.softcapped_attention import softcapped_attention
from kubealign_services.training.torch_backend.context_parallel.context_group import ContextGroup
from kubealign_services.training.torch_backend.context_parallel.head_exchange import (
    gather_heads,
    scatter_heads,
)
from kubealign_services.training.torch_backend.packing import per_sequence_attention
from kubealign_services.training.torch_backend.packing.shared_prompts import SharedPack
from kubealign_services.training.torch_backend.packing.varlen_attention import (
    RaggedLayout,
    can_run,
    plan_ragged,
    ragged_attention,
)

#: Name of the attention function in transformers (`attn_implementation`).
PACKED_ATTENTION = "kubealign_packed"

#: Keyword argument through which models pass the plan to their attention.
PLAN_ARGUMENT = "kubealign_plan"

# A block is closed when the next sequence would be padded by more than this share of the block's width.
_MAX_PADDING = 0.25

_UNSUPPORTED_ARGUMENTS = ("s_aux", "position_bias", "head_mask")


class UnsupportedTrainingModel(ValueError):
    """The model cannot run packed. The message names the unsupported feature."""


@dataclass(frozen=True)
class PaddedBlock:
    """Sequences of similar lengths, right-padded.

    Attributes:
        gather: int64 [sequences, width], the pack's token at each slot of the block.
        start: Index of the first token when the block's tokens are contiguous in the pack; else None.
    """

    gather: Tensor
    start: int | None = None

    def gather_states(self, states: Tensor) -> Tensor:
        """Gather the states [T, heads, d] of the pack into [sequences, width, heads, d]; a view where
        possible.
        """
        if self.start is None:
            return states[self.gather]
        run = states[self.start : self.start + self.gather.numel()]
        return run.view(*self.gather.shape, *states.shape[1:])


@dataclass(frozen=True)
class PackedAttentionPlan:
    """Mapping between a pack and the inputs of the attention kernels.

    Attributes:
        blocks: Hold every token, plus padding.
        scatter: int64 [T], the slot of each token among the flattened slots of the blocks; None for the
            identity.
        ragged: For a kernel that needs no blocks.
        offsets: [S + 1], boundaries of the sequences in the pack, if they are contiguous, of different
            lengths, and long enough for a kernel call each.
        context_group: The ranks that share the pack's tokens; None: this rank has all of them.
    """

    blocks: list[PaddedBlock]
    scatter: Tensor | None
    ragged: RaggedLayout | None = None
    offsets: list[int] | None = None
    context_group: ContextGroup | None = None


def plan_attention(
    cu_seqlens: Tensor, device: torch.device, shared: SharedPack | None = None
) -> PackedAttentionPlan:
    """Plan the attention of a pack. The plan's tensors are on `device`.

    Args:
        cu_seqlens: int32 [S + 1] on the CPU, S at least 1.
        shared: Positions of the sequences' tokens in a pack that stores shared prompts once; None for
            contiguous sequences.
    """
    lengths = (cu_seqlens[1:] - cu_seqlens[:-1]).tolist()
    starts = cu_seqlens[:-1].tolist()
    blocks: list[PaddedBlock] = []
    scatter = torch.empty(int(cu_seqlens[-1]), dtype=torch.int64)
    slots = 0
    for members in _group_by_length(lengths):
        width = lengths[members[0]]
        length = torch.tensor([lengths[i] for i in members])[:, None]
        column = torch.arange(width)[None, :]
        gather = torch.tensor([starts[i] for i in members])[:, None] + torch.minimum(column, length - 1)
        slot = slots + torch.arange(gather.numel()).view_as(gather)
        real = column < length
        scatter[gather[real]] = slot[real]
        slots += gather.numel()
        if shared is not None:
            gather = shared.pack_indices[gather]
        first = int(gather[0, 0])
        is_run = bool((gather.flatten() == torch.arange(first, first + gather.numel())).all())
        blocks.append(PaddedBlock(gather.to(device), first if is_run else None))
    if shared is not None:
        scatter = scatter[shared.computed_indices]
    in_order = len(blocks) == 1 and blocks[0].start is not None
    ragged = plan_ragged(cu_seqlens, device, shared)
    if in_order:
        return PackedAttentionPlan(blocks, None, ragged)
    offsets = cu_seqlens.tolist()
    is_contiguous = shared is None and per_sequence_attention.is_worth_per_sequence_calls(offsets)
    return PackedAttentionPlan(blocks, scatter.to(device), ragged, offsets if is_contiguous else None)


def _group_by_length(lengths: list[int]) -> list[list[int]]:
    """Group sequences by similar length, the longest of each group first."""
    groups: list[list[int]] = []
    for sequence in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        if groups and lengths[sequence] >= (1 - _MAX_PADDING) * lengths[groups[-1][0]]:
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
    softcap: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Compute the attention of a pack. Returns ([1, T, heads, d], None).

    T is the number of this rank's tokens when the ranks of a context group share the pack; then collective.

    Raises UnsupportedTrainingModel when the model needs an unsupported feature (sinks, masks of its own),
    IndivisibleHeads when the group's ranks cannot share the heads.

    Args:
        query: [1, heads, T, d].
        key, value: [1, kv heads, T, d].
        softcap: Scores are capped, see `softcapped_attention`; None: they are not.
    """
    plan = kwargs.get(PLAN_ARGUMENT)
    if not isinstance(plan, PackedAttentionPlan):
        raise UnsupportedTrainingModel(
            f"{type(module).__name__} did not receive {PLAN_ARGUMENT}: its model does not pass keyword "
            "arguments on"
        )
    unsupported = [name for name in _UNSUPPORTED_ARGUMENTS if kwargs.get(name) is not None]
    if attention_mask is not None:
        unsupported.append("an attention mask")
    if not (getattr(module, "is_causal", True) and kwargs.get("is_causal", True) is not False):
        unsupported.append("attention that is not causal")
    if unsupported:
        raise UnsupportedTrainingModel(
            f"{type(module).__name__} needs {', '.join(unsupported)}, which packed attention does not support"
        )
    query, key, value = (states[0].transpose(0, 1) for states in (query, key, value))
    if plan.context_group is None:
        return _attend(plan, query, key, value, dropout, scaling, sliding_window, softcap)[None], None
    query, key, value = scatter_heads(query, key, value, plan.context_group)
    output = _attend(plan, query, key, value, dropout, scaling, sliding_window, softcap)
    return gather_heads(output, plan.context_group)[None], None


def _attend(
    plan: PackedAttentionPlan,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout: float,
    scaling: float | None,
    sliding_window: int | None,
    softcap: float | None,
) -> Tensor:
    """Compute the attention of a whole pack by the fastest kernel that supports it. Returns [T, heads, d].

    Args:
        query: [T, heads, d].
        key, value: [T, kv heads, d].
    """
    repeats = query.shape[1] // key.shape[1]
    if plan.ragged is not None and softcap is None and can_run(query, dropout):
        return ragged_attention(plan.ragged, query, key, value, scaling, sliding_window)
    offsets = plan.offsets
    if offsets is not None and softcap is None and _fits_window(offsets, sliding_window):
        heads = query, *_repeat_kv_heads(key, value, repeats)
        if per_sequence_attention.can_run(*heads, offsets, dropout):
            return per_sequence_attention.per_sequence_attention(*heads, offsets, scaling)
    pieces = [
        _attend_block(block, (query, key, value), repeats, dropout, scaling, sliding_window, softcap)
        for block in plan.blocks
    ]
    output = pieces[0] if len(pieces) == 1 else torch.cat(pieces)
    return output if plan.scatter is None else output[plan.scatter]


def _repeat_kv_heads(key: Tensor, value: Tensor, repeats: int) -> tuple[Tensor, Tensor]:
    """Repeat the heads, the second dimension, to the number of query heads."""
    if repeats == 1:
        return key, value
    return key.repeat_interleave(repeats, dim=1), value.repeat_interleave(repeats, dim=1)


def _fits_window(offsets: list[int], window: int | None) -> bool:
    """Return True when every sequence fits into the attention window."""
    return window is None or max(end - start for start, end in pairwise(offsets)) <= window


def _attend_block(
    block: PaddedBlock,
    states: tuple[Tensor, Tensor, Tensor],
    repeats: int,
    dropout: float,
    scaling: float | None,
    sliding_window: int | None,
    softcap: float | None,
) -> Tensor:
    """Compute the attention of one block.

    Maps the queries, keys and values [T, heads, d] of the pack to [sequences * width, heads, d].
    """
    q, k, v = (block.gather_states(each).transpose(1, 2) for each in states)
    width = block.gather.shape[1]
    mask = None
    if sliding_window is not None and width > sliding_window:
        position = torch.arange(width, device=q.device)
        distance = position[:, None] - position[None, :]
        mask = (distance >= 0) & (distance < sliding_window)
    if softcap is not None:
        out = softcapped_attention(q, k, v, mask, scaling, softcap, dropout)
        return out.transpose(1, 2).flatten(0, 1)
    k, v = _repeat_kv_heads(k, v, repeats)
    out = scaled_dot_product_attention(
        q, k, v, attn_mask=mask, dropout_p=dropout, is_causal=mask is None, scale=scaling
    )
    return out.transpose(1, 2).flatten(0, 1)


def _no_mask(use_vmap: bool = False, **_: Any) -> None:
    """Build no mask; refuse a model that combines its own mask with the causal one."""
    if use_vmap:
        raise UnsupportedTrainingModel(
            "the model combines a mask of its own with the causal one, which packed attention does not "
            "support"
        )


AttentionInterface.register(PACKED_ATTENTION, packed_attention)
AttentionMaskInterface.register(PACKED_ATTENTION, _no_mask)
