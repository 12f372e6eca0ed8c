"""What the engine asks of the model and its cache, one forward pass at a time.

The engine decides which sequences run and which token comes next; here is computed, and nothing is decided.
So the same passes can be made by several processes that each hold a slice of the model.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from kubealign_services.generation.torch_engine.adapted_weights import AdaptedWeights
from kubealign_services.generation.torch_engine.attention import DecodePlan, PromptPlan, PromptRun
from kubealign_services.generation.torch_engine.cache import KeyValueCache
from kubealign_services.generation.torch_engine.model import CausalModel
from kubealign_services.generation.torch_engine.weights import CheckpointWeights


@dataclass(frozen=True)
class Prompts:
    """Prompts one after another, sorted by length: their `tokens`, and by prompt its length and how many
    samples are made of it. The samples take the cache's slots from `first_slot` on, in order."""

    tokens: list[int]
    lengths: list[int]
    samples: list[int]
    first_slot: int


class Passes(Protocol):
    """The model, its cache and its weights. One thread calls it, in inference mode.

    context: most tokens of a sequence. vocabulary: number of logits. device: where logits are.
    """

    context: int
    vocabulary: int
    device: torch.device

    def reserve(self, sequences: int, positions: int) -> None:
        """Have room for `sequences` of `positions` tokens each."""

    def decode(self, tokens: list[int], positions: list[int]) -> Tensor:
        """One new token for each of the first slots, at its position. Logits [n, vocabulary] float32."""

    def prefill(self, prompts: Prompts) -> Tensor:
        """Whole prompts, cached for all their samples. Logits [prompts, vocabulary] float32 after each."""

    def hold(self, slot: int, length: int) -> None:
        """Keep a slot's first `length` positions, in the place of what was held before."""

    def restore(self, first_slot: int, count: int) -> None:
        """Write what is held into these slots."""

    def move(self, sources: list[int], targets: list[int], positions: int) -> None:
        """Copy the first `positions` of each source slot to its target. No slot may be both."""

    def score(self, tokens: list[int]) -> Tensor:
        """Logits [tokens, vocabulary] float32 after each token of one sequence. Touches no slot."""

    def take(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        """All weights, as `CheckpointWeights.take`; an adapter is forgotten."""

    def adapt(self, tensors: Iterable[tuple[str, Tensor]], scale: float) -> None:
        """An adapter, as `AdaptedWeights.take`."""

    def rest(self) -> None:
        """Nothing runs: no pass may come for a long time."""


class LocalPasses:
    """Passes of one process."""

    def __init__(self, model: CausalModel, max_sequences: int) -> None:
        self.context, self.vocabulary, self.device = model.context, model.vocabulary, model.device
        self.model = model
        self._weights = CheckpointWeights(model.module)
        self._adapted = AdaptedWeights(model.module)
        self._cache = KeyValueCache(model.layers, max_sequences, model.dtype, model.device)

    def reserve(self, sequences: int, positions: int) -> None:
        self._cache.reserve(sequences, positions)

    def decode(self, tokens: list[int], positions: list[int]) -> Tensor:
        at = torch.tensor(positions, device=self.device)
        plan = DecodePlan(self._cache, at, max(positions) + 1)
        return self.model.forward(torch.tensor(tokens, device=self.device), at, plan, keep=None)

    def prefill(self, prompts: Prompts) -> Tensor:
        positions = torch.cat([torch.arange(length) for length in prompts.lengths]).to(self.device)
        ends = torch.tensor(prompts.lengths, device=self.device).cumsum(0) - 1
        plan = PromptPlan(_runs(prompts, self.device), self._cache)
        return self.model.forward(
            torch.tensor(prompts.tokens, device=self.device), positions, plan, keep=ends
        )

    def hold(self, slot: int, length: int) -> None:
        self._cache.hold(slot, length)

    def restore(self, first_slot: int, count: int) -> None:
        self._cache.restore(slice(first_slot, first_slot + count))

    def move(self, sources: list[int], targets: list[int], positions: int) -> None:
        self._cache.move(sources, targets, positions)

    def score(self, tokens: list[int]) -> Tensor:
        ids = torch.tensor(tokens, device=self.device)
        plan = PromptPlan([PromptRun(0, 1, len(tokens))])
        return self.model.forward(ids, torch.arange(len(tokens), device=ids.device), plan, keep=None)

    def take(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        self._adapted.forget()
        self._weights.take(tensors)

    def adapt(self, tensors: Iterable[tuple[str, Tensor]], scale: float) -> None:
        self._adapted.take(tensors, scale)

    def rest(self) -> None:
        """There is nobody to tell."""


def _runs(prompts: Prompts, device: torch.device) -> list[PromptRun]:
    """Neighbours of equal length together; their samples' slots follow each other."""
    runs: list[PromptRun] = []
    start, slot, row = 0, prompts.first_slot, 0
    while row < len(prompts.lengths):
        length = prompts.lengths[row]
        end = row
        while end < len(prompts.lengths) and prompts.lengths[end] == length:
            end += 1
        counts = torch.tensor(prompts.samples[row:end])
        samples = int(counts.sum())
        copies = torch.arange(end - row).repeat_interleave(counts).to(device) if samples > end - row else None
        runs.append(PromptRun(start, end - row, length, slice(slot, slot + samples), copies))
        start += (end - row) * length
        slot += samples
        row = end
    return runs
