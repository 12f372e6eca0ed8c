"""Context parallelism: each rank has some tokens of every pack and asks all keys and values of the others.

Keys and values are gathered before the attention and their gradients summed back (as Llama 3 was trained:
Grattafiori et al. 2024, section 3.3.2), not passed round a ring: a pack's sequences may be cut anywhere.
Each rank has two chunks, one from each end, so that causal attention costs all of them about the same.
"""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from megatron.core.tensor_parallel import gather_from_sequence_parallel_region
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention


@dataclass(frozen=True)
class Part:
    """One sequence's queries that are here. rows: int64 [q], their places among this rank's tokens.
    positions: int64 [q], in the sequence. keys: int64 [k], the places of the sequence's tokens in what is
    gathered, up to the last query's."""

    rows: Tensor
    positions: Tensor
    keys: Tensor


@dataclass(frozen=True)
class ContextPlan:
    """parts hold each of this rank's tokens once; back: int64 [t], each token's place among the parts."""

    parts: list[Part]
    back: Tensor


def shares(length: int, ranks: int) -> list[Tensor]:
    """For each rank the tokens that it has, int64: chunk r from the front and chunk r from the back of
    2 x ranks chunks. length is a multiple of their number."""
    chunks = torch.arange(length).chunk(2 * ranks)
    return [torch.cat([chunks[rank], chunks[2 * ranks - 1 - rank]]) for rank in range(ranks)]


def plan_context(seams: Tensor, ranks: int, rank: int, device: torch.device) -> ContextPlan:
    """seams: int32 [S + 1] on the CPU, where the sequences of the padded pack begin and end."""
    length = int(seams[-1])
    owned = shares(length, ranks)
    gathered = torch.empty(length, dtype=torch.int64)
    gathered[torch.cat(owned)] = torch.arange(length)
    mine = owned[rank]
    parts = []
    for start, end in zip(seams[:-1].tolist(), seams[1:].tolist(), strict=True):
        rows = ((mine >= start) & (mine < end)).nonzero()[:, 0]
        if len(rows):
            positions = mine[rows] - start
            keys = gathered[start : start + int(positions.max()) + 1]
            parts.append(Part(rows.to(device), positions.to(device), keys.to(device)))
    back = torch.empty(len(mine), dtype=torch.int64)
    back[torch.cat([part.rows.cpu() for part in parts])] = torch.arange(len(mine))
    return ContextPlan(parts, back.to(device))


def context_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    plan: ContextPlan,
    group: dist.ProcessGroup,
    scale: float | None,
    window: int | None,
) -> Tensor:
    """query [t, heads, d], key and value [t, kv heads, d] of this rank's tokens -> [t, heads, d].
    Collective."""
    key, value = (
        gather_from_sequence_parallel_region(states.contiguous(), True, group=group)
        for states in (key, value)
    )
    repeats = query.shape[1] // key.shape[1]
    pieces = []
    for part in plan.parts:
        q = query[part.rows].transpose(0, 1)
        k, v = (
            states[part.keys].transpose(0, 1).repeat_interleave(repeats, dim=0) for states in (key, value)
        )
        distance = part.positions[:, None] - torch.arange(len(part.keys), device=query.device)[None, :]
        mask = distance >= 0
        if window is not None:
            mask &= distance < window
        pieces.append(scaled_dot_product_attention(q[None], k[None], v[None], attn_mask=mask, scale=scale)[0])
    return torch.cat(pieces, dim=1).transpose(0, 1)[plan.back]
