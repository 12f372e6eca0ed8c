"""Prompts that several sequences of a pack begin with: computed once, seen by all of them.

A token's hidden states depend on the tokens before it in its sequence and on nothing else. So the samples of
a prompt, or a pair's two responses, need its states only once: the pack holds the prompt of the first, and
the others' attention reads it there. Gradients of all of them flow back through it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from kubealign_services.batch.packed import Batch


@dataclass(frozen=True)
class Prompt:
    """Of one sequence: its tokens before the first that the column loss_mask counts. length: how many.
    key: their bytes, equal where prompts are."""

    length: int
    key: bytes


@dataclass(frozen=True)
class SharedPack:
    """kept: int64 [U], the batch's tokens that are computed, ascending. places: int64 [T], where each of the
    batch's tokens stands among them."""

    kept: Tensor
    places: Tensor


def prompts(batch: Batch) -> list[Prompt]:
    """One for each sequence; all of length 0 where there is no column loss_mask."""
    mask = batch.token_columns.get("loss_mask")
    if mask is None:
        return [Prompt(0, b"")] * len(batch)
    tokens, counted = batch.tokens.numpy(), mask.numpy() != 0
    offsets = batch.cu_seqlens.tolist()
    found = []
    for start, end in pairwise(offsets):
        inside = counted[start:end]
        length = int(inside.argmax()) if inside.any() else end - start
        found.append(Prompt(length, tokens[start : start + length].tobytes()))
    return found


def distinct_tokens(lengths: Sequence[int], prompts: Sequence[Prompt]) -> int:
    """How many tokens are computed of sequences of these lengths with these prompts."""
    own = sum(length - prompt.length for length, prompt in zip(lengths, prompts, strict=True))
    return own + sum(len_ for len_ in {prompt.key: prompt.length for prompt in prompts}.values())


def share_prompts(batch: Batch) -> SharedPack | None:
    """None where no prompt stands twice."""
    first: dict[bytes, int] = {}
    offsets = batch.cu_seqlens.tolist()
    source = torch.arange(len(batch.tokens))
    shared = False
    for start, prompt in zip(offsets[:-1], prompts(batch), strict=True):
        owner = first.setdefault(prompt.key, start)
        if prompt.length and owner != start:
            source[start : start + prompt.length] = torch.arange(owner, owner + prompt.length)
            shared = True
    if not shared:
        return None
    is_kept = source == torch.arange(len(source))
    return SharedPack(kept=is_kept.nonzero()[:, 0], places=(is_kept.cumsum(0) - 1)[source])
