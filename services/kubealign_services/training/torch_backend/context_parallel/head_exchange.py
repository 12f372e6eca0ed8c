"""Exchange of tokens for attention heads between the ranks of a context group.

Before the attention each rank has some tokens with all heads, afterwards all tokens with some heads (Jacobs
et al. 2023, "DeepSpeed Ulysses", section 3.1). So any attention kernel sees the whole pack. One all-to-all
moves queries, keys and values, another one the attention's output.
"""

from math import gcd
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from kubealign_services.training.torch_backend.context_parallel.context_group import ContextGroup


class IndivisibleHeads(ValueError):
    """The ranks of a context group cannot share the model's attention heads equally."""


def kv_head_repeats(kv_heads: int, ranks: int) -> int:
    """Return how often each key and value head is repeated so that `ranks` ranks can share them equally.

    The least number; it divides the query heads of each key head if the ranks divide the query heads.
    """
    return ranks // gcd(kv_heads, ranks)


def scatter_heads(
    query: Tensor, key: Tensor, value: Tensor, group: ContextGroup
) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries, keys and values of all U tokens for this rank's heads. Differentiable, collective.

    Returns [U, heads / ranks, d] for the queries, and [U, repeated kv heads / ranks, d] for keys and values;
    the last dimension is contiguous. Raises IndivisibleHeads.

    Args:
        query: [U / ranks, heads, d], of this rank's tokens.
        key, value: [U / ranks, kv heads, d]; the values may have another width.
    """
    ranks, heads = group.size, query.shape[1]
    if heads % ranks:
        raise IndivisibleHeads(
            f"backend.torch.contextParallel: {ranks}; the model has {heads} attention heads, which "
            "it must divide"
        )
    repeats = kv_head_repeats(key.shape[1], ranks)
    if repeats > 1:
        key, value = (states.repeat_interleave(repeats, dim=1) for states in (key, value))
    states = (query, key, value)
    # The heads of a rank are consecutive, so that query heads stay with their key head.
    rows = [each.reshape(each.shape[0], ranks, -1) for each in states]
    received = _exchange(torch.cat(rows, dim=2).transpose(0, 1), group).flatten(0, 1)
    parts = torch.split(received, [each.shape[2] for each in rows], dim=1)
    query, key, value = (
        torch.unflatten(part, 1, (-1, each.shape[2])) for part, each in zip(parts, states, strict=True)
    )
    return query, key, value


def gather_heads(output: Tensor, group: ContextGroup) -> Tensor:
    """Return the attention's output of this rank's tokens for all heads, [U / ranks, heads, d], contiguous.

    Differentiable, collective.

    Args:
        output: [U, heads / ranks, d], of all tokens for this rank's heads.
    """
    ranks, (tokens, heads, width) = group.size, output.shape
    received = _exchange(output.reshape(ranks, tokens // ranks, heads * width), group)
    # Some models view the output as rows, which needs it contiguous.
    return received.transpose(0, 1).contiguous().view(tokens // ranks, ranks * heads, width)


def _exchange(states: Tensor, group: ContextGroup) -> Tensor:
    """Send states[i] to rank i. Returns what this rank receives, in the order of the ranks.

    Args:
        states: [ranks, ...].
    """
    received: Tensor = _Exchange.apply(states, group.group)
    return received


class _Exchange(torch.autograd.Function):
    """An all-to-all of equal parts, which is its own adjoint.

    Not torch's functional collective: its results are of a tensor subclass, which the attention kernels
    would not take.
    """

    @staticmethod
    def forward(ctx: Any, states: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return _all_to_all(states, group)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _all_to_all(gradient, ctx.group), None


def _all_to_all(states: Tensor, group: dist.ProcessGroup) -> Tensor:
    states = states.contiguous()
    received = torch.empty_like(states)
    dist.all_to_all_single(received, states, group=group)
    return received
