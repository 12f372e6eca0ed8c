"""Context parallelism: each rank holds some tokens of every pack and gathers all keys and values of the
others.

Keys and values are gathered before the attention and their gradients summed back (as for Llama 3: Grattafiori
et al. 2024, section 3.3.2), not passed around a ring: a pack's sequences may be divided anywhere. Each rank
has two chunks, one from each end, so that causal attention costs all ranks about the same.
"""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from megatron.core.tensor_parallel import gather_from_sequence_parallel_region
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention


@dataclass(frozen=True)
class LocalQueries:
    """The queries of one sequence on this rank.

    Attributes:
        rows: int64 [q], indices among this rank's tokens.
        positions: int64 [q], positions in the sequence.
        keys: int64 [k], indices of the sequence's tokens in the gathered keys, up to the last query's.
    """

    rows: Tensor
    positions: Tensor
    keys: Tensor


@dataclass(frozen=True)
class ContextPlan:
    """Attention plan of one context rank.

    Attributes:
        queries: Hold each of this rank's tokens once.
        restore_order: int64 [t], index of each token in the concatenated queries.
    """

    queries: list[LocalQueries]
    restore_order: Tensor


def context_shares(length: int, ranks: int) -> list[Tensor]:
    """Return for each rank the indices of its tokens, int64: chunk r from the front and chunk r from the back
    of 2 x ranks chunks.

    Args:
        length: A multiple of the number of chunks.
    """
    chunks = torch.arange(length).chunk(2 * ranks)
    return [torch.cat([chunks[rank], chunks[2 * ranks - 1 - rank]]) for rank in range(ranks)]


def plan_context(seams: Tensor, ranks: int, rank: int, device: torch.device) -> ContextPlan:
    """Plan the attention of one context rank.

    Args:
        seams: int32 [S + 1] on the CPU, boundaries of the sequences of the padded pack.
    """
    length = int(seams[-1])
    owned = context_shares(length, ranks)
    gathered = torch.empty(length, dtype=torch.int64)
    gathered[torch.cat(owned)] = torch.arange(length)
    mine = owned[rank]
    parts = []
    for start, end in zip(seams[:-1].tolist(), seams[1:].tolist(), strict=True):
        rows = ((mine >= start) & (mine < end)).nonzero()[:, 0]
        if len(rows):
            positions = mine[rows] - start
            keys = gathered[start : start + int(positions.max()) + 1]
            parts.append(LocalQueries(rows.to(device), positions.to(device), keys.to(device)))
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
    """Compute the attention of this rank's tokens. Returns [t, heads, d]. Collective.

    Args:
        query: [t, heads, d].
        key, value: [t, kv heads, d].
    """
    key, value = (
        gather_from_sequence_parallel_region(states.contiguous(), True, group=group)
        for states in (key, value)
    )
    repeats = query.shape[1] // key.shape[1]
    pieces = []
    for part in plan.queries:
        q = query[part.rows].transpose(0, 1)
        k, v = (
            states[part.keys].transpose(0, 1).repeat_interleave(repeats, dim=0) for states in (key, value)
        )
        distance = part.positions[:, None] - torch.arange(len(part.keys), device=query.device)[None, :]
        mask = distance >= 0
        if window is not None:
            mask &= distance < window
        pieces.append(scaled_dot_product_attention(q[None], k[None], v[None], attn_mask=mask, scale=scale)[0])
    return torch.cat(pieces, dim=1).transpose(0, 1)[plan.restore_order]
