"""Cache of forward passes for the update that trains on the same sequences.

Old log-probabilities and values are computed with the weights that the update starts from. When a step is one
update, its own forward pass over the same sequences repeats that computation: a quarter of the model's cost.
The cache holds what the backward pass needs, for no more tokens than one microbatch may have; with
`activationOffload` in host memory: no weight changes before the cache is used or dropped.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from kubealign_services.algorithms.contract import Objective
from kubealign_services.batch.packed import Batch
from kubealign_services.batch.temperatures import sequence_temperatures
from kubealign_services.training.expert_routing import ROUTING

#: Columns and scalars that a pass reads, in addition to the tokens and the temperatures.
_INPUT_COLUMNS = ("loss_mask", "candidates", ROUTING)
_INPUT_SCALARS = ("candidates_temperature",)


@dataclass(frozen=True)
class _CachedPass:
    """A cached pass.

    Attributes:
        part: The input microbatch.
        columns: The outputs, with the autograd graph of the pass.
    """

    part: Batch
    columns: Mapping[str, Tensor]


class ForwardCache:
    """Passes with one set of weights.

    They are dropped once they have been trained on, or when they exceed `most_tokens` tokens.
    """

    def __init__(self, most_tokens: int) -> None:
        self._free_tokens = most_tokens
        self._passes: list[_CachedPass] = []

    def __len__(self) -> int:
        return len(self._passes)

    def reserve_tokens(self, tokens: int) -> bool:
        """Reserve room for more tokens. Returns False when they do not fit."""
        self._free_tokens -= tokens
        if self._free_tokens < 0:
            self._passes.clear()
        return self._free_tokens >= 0

    def add(self, part: Batch, columns: Mapping[str, Tensor]) -> None:
        """Cache a pass.

        Args:
            part: A microbatch with reserved room.
            columns: The model's outputs for the microbatch, [T, ...], with gradient.
        """
        self._passes.append(_CachedPass(part, columns))

    def pop_matching(
        self, minibatch: Batch, objective: Objective
    ) -> Iterator[tuple[list[int], dict[str, Tensor]]]:
        """Yield (sequences of the minibatch, their columns) of every pass over sequences that the minibatch
        contains unchanged.

        All passes leave the cache, matching or not. No sequence is yielded twice.
        """
        index_of = {name: index for index, name in enumerate(minibatch.sample_ids)}
        used: set[int] = set()
        while self._passes:
            cached = self._passes.pop()
            names = cached.part.sample_ids
            if objective.unit > 1 or not (
                index_of.keys() >= set(names) and objective.outputs <= set(cached.columns)
            ):
                continue
            sequences = [index_of[name] for name in names]
            is_new = len(used.union(sequences)) == len(used) + len(sequences)
            if is_new and _has_same_inputs(cached.part, minibatch.select(sequences)):
                used.update(sequences)
                yield sequences, {name: cached.columns[name] for name in objective.outputs}


def _has_same_inputs(one: Batch, other: Batch) -> bool:
    """Return True when a model computes the same outputs for both batches."""
    return (
        torch.equal(one.cu_seqlens, other.cu_seqlens)
        and torch.equal(one.tokens, other.tokens)
        and torch.equal(sequence_temperatures(one), sequence_temperatures(other))
        and all(one.scalars.get(name) == other.scalars.get(name) for name in _INPUT_SCALARS)
        and all(
            _is_equal(one.token_columns.get(name), other.token_columns.get(name)) for name in _INPUT_COLUMNS
        )
    )


def _is_equal(one: Tensor | None, other: Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    return torch.equal(one, other)
