"""Forward passes that are kept for the update that learns of them.

Old log-probabilities and values are those of the weights that the update starts from. Where a step is one
update, its own forward pass over the same sequences would be the same computation once more: a quarter of
what the model costs. What the backward pass needs is held meanwhile, for no more tokens than one micro-batch
may have.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from kubealign_services.algorithms.contract import Objective
from kubealign_services.batch.packed import Batch

#: Columns that a pass reads, beside the tokens.
_READ = ("loss_mask", "candidates")
_SCALARS = ("temperature", "candidates_temperature")


@dataclass(frozen=True)
class _Pass:
    """part: what went in. columns: what came out, with the graph of the pass behind it."""

    part: Batch
    columns: Mapping[str, Tensor]


class KeptPasses:
    """Passes of one set of weights. They are let go once they have been learned of, or when there are more
    than `most_tokens` tokens: then there is no room for any."""

    def __init__(self, most_tokens: int) -> None:
        self._room = most_tokens
        self._passes: list[_Pass] = []

    def __len__(self) -> int:
        return len(self._passes)

    def reserve(self, tokens: int) -> bool:
        """Whether there is room for so many tokens more."""
        self._room -= tokens
        if self._room < 0:
            self._passes.clear()
        return self._room >= 0

    def add(self, part: Batch, columns: Mapping[str, Tensor]) -> None:
        """part: a micro-batch that there is room for. columns: the model's outputs for it, [T, ...], with
        gradient."""
        self._passes.append(_Pass(part, columns))

    def take(self, minibatch: Batch, objective: Objective) -> Iterator[tuple[list[int], dict[str, Tensor]]]:
        """(sequences of the minibatch, their columns) of every pass over sequences that the minibatch has, as
        they are; the others are let go, and so is each once it was handed out. No sequence comes twice."""
        places = {name: index for index, name in enumerate(minibatch.sample_ids)}
        taken: set[int] = set()
        while self._passes:
            kept = self._passes.pop()
            names = kept.part.sample_ids
            if objective.unit > 1 or not (
                places.keys() >= set(names) and objective.outputs <= set(kept.columns)
            ):
                continue
            sequences = [places[name] for name in names]
            once = len(taken.union(sequences)) == len(taken) + len(sequences)
            if once and _same(kept.part, minibatch.select(sequences)):
                taken.update(sequences)
                yield sequences, {name: kept.columns[name] for name in objective.outputs}


def _same(one: Batch, other: Batch) -> bool:
    """Whether a model computes the same of both."""
    return (
        torch.equal(one.cu_seqlens, other.cu_seqlens)
        and torch.equal(one.tokens, other.tokens)
        and all(one.scalars.get(name) == other.scalars.get(name) for name in _SCALARS)
        and all(_equal(one.token_columns.get(name), other.token_columns.get(name)) for name in _READ)
    )


def _equal(one: Tensor | None, other: Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    return torch.equal(one, other)
