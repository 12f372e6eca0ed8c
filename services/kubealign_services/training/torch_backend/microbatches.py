"""How a minibatch is cut: over the ranks, and on each rank into packed forward passes. Pure planning on
lengths."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from kubealign_services.batch.packed import Batch


@dataclass(frozen=True)
class Microbatch:
    """sequences: which of the minibatch, in order. counted False: run for its collectives only, weight
    zero."""

    sequences: list[int]
    counted: bool = True


def minibatches(batch: Batch, unit: int, epochs: int, minibatch_sequences: int, seed: int) -> Iterator[Batch]:
    """The batch's minibatches over all epochs: units (`unit` consecutive sequences) in an order drawn from
    seed for each epoch. The last of an epoch may be smaller. Raises ValueError when units would be cut."""
    units = _units(batch, unit)
    if minibatch_sequences < 1 or minibatch_sequences % unit:
        raise ValueError(f"minibatches of {minibatch_sequences} sequences do not hold whole units of {unit}")
    generator = torch.Generator().manual_seed(seed)
    per_minibatch = minibatch_sequences // unit
    for _ in range(epochs):
        order = torch.randperm(len(units), generator=generator).tolist()
        for first in range(0, len(order), per_minibatch):
            chosen = order[first : first + per_minibatch]
            yield batch.select([sequence for index in chosen for sequence in units[index]])


def plan_microbatches(batch: Batch, unit: int, microbatch_tokens: int, ranks: int) -> list[list[Microbatch]]:
    """For each rank its micro-batches: the same number on every rank, each of at most `microbatch_tokens`
    tokens unless one unit alone is longer. Every unit is counted exactly once over all ranks. Raises
    ValueError when units would be cut."""
    units = _units(batch, unit)
    lengths = batch.lengths.tolist()
    tokens = [sum(lengths[i] for i in members) for members in units]
    longest_first = sorted(range(len(units)), key=lambda i: (-tokens[i], i))
    shares = [_fill(share, tokens, microbatch_tokens) for share in _balance(longest_first, tokens, ranks)]
    most = max(len(share) for share in shares)
    idle = Microbatch(units[longest_first[-1]], counted=False)
    return [
        [Microbatch([sequence for i in chosen for sequence in units[i]]) for chosen in share]
        + [idle] * (most - len(share))
        for share in shares
    ]


def _units(batch: Batch, unit: int) -> list[list[int]]:
    if len(batch) == 0 or len(batch) % unit:
        raise ValueError(f"a batch of {len(batch)} sequences does not hold whole units of {unit}")
    return [list(range(first, first + unit)) for first in range(0, len(batch), unit)]


def _balance(longest_first: Sequence[int], tokens: Sequence[int], ranks: int) -> list[list[int]]:
    """Each unit to the rank with the fewest tokens so far, the longest first (Graham 1969)."""
    shares: list[list[int]] = [[] for _ in range(ranks)]
    loads = [0] * ranks
    for unit in longest_first:
        rank = loads.index(min(loads))
        shares[rank].append(unit)
        loads[rank] += tokens[unit]
    return shares


def _fill(longest_first: Sequence[int], tokens: Sequence[int], capacity: int) -> list[list[int]]:
    """First fit, the longest first: each unit into the first micro-batch with room for it."""
    bins: list[list[int]] = []
    rooms: list[int] = []
    for unit in longest_first:
        fitting = next((i for i, room in enumerate(rooms) if tokens[unit] <= room), None)
        if fitting is None:
            bins.append([unit])
            rooms.append(capacity - tokens[unit])
        else:
            bins[fitting].append(unit)
            rooms[fitting] -= tokens[unit]
    return bins
