"""Shared prompts of a pack: prompts that several sequences start with are computed once.

A token's hidden states depend on the tokens before it in its sequence and on nothing else. So the samples of
a prompt, or a pair's two responses, need its states only once: the pack stores the prompt of the first
sequence, and the attention of the other sequences reads it from there. Gradients of all of them flow back
through it. Samples that recorded other experts for the prompt do not share it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from kubealign_services.batch.packed import Batch
from kubealign_services.training.expert_routing import ROUTING


@dataclass(frozen=True)
class PromptPrefix:
    """The prompt of one sequence: its tokens before the first that the column loss_mask counts.

    Attributes:
        length: Number of tokens.
        key: Bytes of the tokens, and of their recorded experts where the batch has them: equal for prompts
            that a model computes alike.
    """

    length: int
    key: bytes


@dataclass(frozen=True)
class SharedPack:
    """A pack that stores shared prompts once.

    Attributes:
        computed_indices: int64 [U], the batch's tokens that are computed, ascending.
        pack_indices: int64 [T], index of each of the batch's tokens among them.
    """

    computed_indices: Tensor
    pack_indices: Tensor


def find_prompts(batch: Batch) -> list[PromptPrefix]:
    """Return the prompt of each sequence; all of length 0 without a column loss_mask."""
    mask = batch.token_columns.get("loss_mask")
    if mask is None:
        return [PromptPrefix(0, b"")] * len(batch)
    tokens, counted = batch.tokens.numpy(), mask.numpy() != 0
    routing = batch.token_columns.get(ROUTING)
    recorded = None if routing is None else routing.numpy()
    offsets = batch.cu_seqlens.tolist()
    result = []
    for start, end in pairwise(offsets):
        inside = counted[start:end]
        length = int(inside.argmax()) if inside.any() else end - start
        key = tokens[start : start + length].tobytes()
        if recorded is not None:
            key += recorded[start : start + length].tobytes()
        result.append(PromptPrefix(length, key))
    return result


def count_distinct_tokens(lengths: Sequence[int], prompts: Sequence[PromptPrefix]) -> int:
    """Return the number of tokens that are computed for sequences of these lengths with these prompts."""
    own = sum(length - prompt.length for length, prompt in zip(lengths, prompts, strict=True))
    return own + sum(len_ for len_ in {prompt.key: prompt.length for prompt in prompts}.values())


def share_prompts(batch: Batch) -> SharedPack | None:
    """Plan a pack with shared prompts. Returns None when no prompt occurs twice."""
    first: dict[bytes, int] = {}
    offsets = batch.cu_seqlens.tolist()
    source = torch.arange(len(batch.tokens))
    shared = False
    for start, prompt in zip(offsets[:-1], find_prompts(batch), strict=True):
        owner = first.setdefault(prompt.key, start)
        if prompt.length and owner != start:
            source[start : start + prompt.length] = torch.arange(owner, owner + prompt.length)
            shared = True
    if not shared:
        return None
    is_computed = source == torch.arange(len(source))
    return SharedPack(
        computed_indices=is_computed.nonzero()[:, 0], pack_indices=(is_computed.cumsum(0) - 1)[source]
    )
