"""Plans microbatches: divides a minibatch over the ranks, and on each rank into packed forward passes.

Pure planning on lengths and prompts.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from kubealign_services.batch.packed import Batch
from kubealign_services.batch.samples import has_several_sequences, split_samples
from kubealign_services.training.torch_backend.packing.shared_prompts import (
    PromptPrefix,
    count_distinct_tokens,
    find_prompts,
)


@dataclass(frozen=True)
class Microbatch:
    """A packed forward pass of one rank.

    Attributes:
        sequences: Indices into the minibatch, in order.
        is_counted: False for a pass that runs for its collectives only, with weight zero.
    """

    sequences: list[int]
    is_counted: bool = True


@dataclass(frozen=True)
class _WorkItem:
    """Units that stay together because they share their prompts.

    Attributes:
        tokens: Number of computed tokens.
        cost: Cost of computing them, in tokens.
    """

    units: list[int]
    tokens: int
    cost: float


def minibatches(batch: Batch, unit: int, epochs: int, minibatch_sequences: int, seed: int) -> Iterator[Batch]:
    """Yield the batch's minibatches over all epochs: units (`unit` consecutive sequences) in an order drawn
    from seed for each epoch.

    The last minibatch of an epoch may be smaller. Where samples have several sequences, a unit is a sample
    with all its sequences, and `minibatch_sequences` counts samples, so that the number of optimiser steps is
    that of the samples. Raises ValueError when units would be divided.
    """
    has_episodes = has_several_sequences(batch)
    if has_episodes and unit > 1:
        raise ValueError(
            f"units of {unit} sequences cannot be made of samples that have several: set "
            "rollout.maxSequencesPerSample to 1"
        )
    units = split_samples(batch) if has_episodes else _split_units(batch, unit)
    if minibatch_sequences < 1 or minibatch_sequences % unit:
        raise ValueError(f"minibatches of {minibatch_sequences} sequences do not hold whole units of {unit}")
    generator = torch.Generator().manual_seed(seed)
    per_minibatch = minibatch_sequences // unit
    for _ in range(epochs):
        order = torch.randperm(len(units), generator=generator).tolist()
        for first in range(0, len(order), per_minibatch):
            chosen = order[first : first + per_minibatch]
            yield batch.select([sequence for index in chosen for sequence in units[index]])


def plan_microbatches(
    batch: Batch,
    unit: int,
    microbatch_tokens: int,
    ranks: int,
    *,
    shared: bool = False,
    attention: float = 0.0,
) -> list[list[Microbatch]]:
    """Plan the microbatches of each rank.

    Every rank has the same number, each of at most `microbatch_tokens` tokens unless a single unit is longer,
    and of about the same cost. Every unit is counted exactly once over all ranks. Raises ValueError when
    units would be divided.

    Args:
        shared: Count the tokens of a prompt once in a microbatch, so that units with the same prompts go
            together unless that would leave ranks idle.
        attention: Attention cost: a sequence of n tokens costs this times n^2, in addition to its tokens.
    """
    units = _split_units(batch, unit)
    plan = _MicrobatchPlanner(batch, units, microbatch_tokens, attention)
    apart = [plan.make_item([index]) for index in range(len(units))]
    shares = plan.balance_over_ranks(apart, ranks)
    if shared:
        together = plan.balance_over_ranks(plan.bundle_by_prompt(), ranks)
        if _max_cost(together) <= _max_cost(shares):
            shares = together
    bins = [
        plan.pack_balanced(share, max(len(plan.pack_first_fit(each)) for each in shares)) for share in shares
    ]
    longest = max(len(share) for share in bins)
    idle = Microbatch(
        units[min(apart, key=lambda item: (item.tokens, -item.units[0])).units[0]], is_counted=False
    )
    return [
        [Microbatch([i for item in chosen for index in item.units for i in units[index]]) for chosen in share]
        + [idle] * (longest - len(share))
        for share in bins
    ]


class _MicrobatchPlanner:
    """Plans one minibatch by bin packing of its items."""

    def __init__(self, batch: Batch, units: list[list[int]], capacity: int, attention: float) -> None:
        self._units = units
        self._lengths: list[int] = batch.lengths.tolist()
        self._prompts = find_prompts(batch)
        self._capacity = capacity
        self._attention = attention

    def make_item(self, units: list[int], shared: bool = False) -> _WorkItem:
        members = [sequence for index in units for sequence in self._units[index]]
        lengths = [self._lengths[i] for i in members]
        item_prompts = [self._prompts[i] if shared else PromptPrefix(0, b"") for i in members]
        tokens = count_distinct_tokens(lengths, item_prompts)
        return _WorkItem(units, tokens, tokens + self._attention * sum(length**2 for length in lengths))

    def bundle_by_prompt(self) -> list[_WorkItem]:
        """Group units with the same prompts into items, as many as fit."""
        same: dict[tuple[bytes, ...], list[int]] = {}
        for index, members in enumerate(self._units):
            same.setdefault(tuple(self._prompts[i].key for i in members), []).append(index)
        items: list[_WorkItem] = []
        for indices in same.values():
            bundle: list[int] = []
            for index in sorted(indices, key=lambda each: (-self.make_item([each]).tokens, each)):
                if bundle and self.make_item([*bundle, index], True).tokens > self._capacity:
                    items.append(self.make_item(bundle, True))
                    bundle = []
                bundle = [*bundle, index]
            items.append(self.make_item(bundle, True))
        return items

    def balance_over_ranks(self, items: Sequence[_WorkItem], ranks: int) -> list[list[_WorkItem]]:
        """Assign each item to the rank with the lowest cost so far, most expensive item first (Graham
        1969).
        """
        shares: list[list[_WorkItem]] = [[] for _ in range(ranks)]
        loads = [0.0] * ranks
        for item in sorted(items, key=lambda each: (-each.cost, each.units[0])):
            rank = loads.index(min(loads))
            shares[rank].append(item)
            loads[rank] += item.cost
        return shares

    def pack_first_fit(self, items: Sequence[_WorkItem]) -> list[list[_WorkItem]]:
        """Put each item, longest first, into the first bin with room for it."""
        bins: list[list[_WorkItem]] = []
        rooms: list[int] = []
        for item in sorted(items, key=lambda each: (-each.tokens, each.units[0])):
            fitting = next((i for i, room in enumerate(rooms) if item.tokens <= room), None)
            if fitting is None:
                bins.append([item])
                rooms.append(self._capacity - item.tokens)
            else:
                bins[fitting].append(item)
                rooms[fitting] -= item.tokens
        return bins

    def pack_balanced(self, items: Sequence[_WorkItem], count: int) -> list[list[_WorkItem]]:
        """Divide a rank's items into `count` microbatches (fewer for fewer items) of about the same cost.

        The most expensive microbatch comes first, so that the ranks' n-th microbatches cost about the same.
        Falls back to `pack_first_fit` when the balanced division does not fit.
        """
        count = min(count, len(items))
        bins: list[list[_WorkItem]] = [[] for _ in range(count)]
        loads, rooms = [0.0] * count, [self._capacity] * count
        for item in sorted(items, key=lambda each: (-each.cost, each.units[0])):
            open_ = [i for i in range(count) if not bins[i] or item.tokens <= rooms[i]]
            if not open_:
                bins = self.pack_first_fit(items)
                break
            chosen = min(open_, key=lambda i: loads[i])
            bins[chosen].append(item)
            loads[chosen] += item.cost
            rooms[chosen] -= item.tokens
        return sorted(bins, key=lambda each: -sum(item.cost for item in each))


def _max_cost(shares: list[list[_WorkItem]]) -> float:
    """Return the cost of the most expensive rank."""
    return max(sum(item.cost for item in share) for share in shares)


def _split_units(batch: Batch, unit: int) -> list[list[int]]:
    if len(batch) == 0 or len(batch) % unit:
        raise ValueError(f"a batch of {len(batch)} sequences does not hold whole units of {unit}")
    return [list(range(first, first + unit)) for first in range(0, len(batch), unit)]
