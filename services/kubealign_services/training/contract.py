"""What a training backend is: forward passes and updates of one model, over however many ranks.

Every method is called on all ranks, in the same order, with the same arguments, and returns the same on all
of them.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol, runtime_checkable

from torch import Tensor

from kubealign_services.algorithms.contract import Objective
from kubealign_services.batch.packed import Batch
from kubealign_services.training.slices import WeightSlice


class Head(StrEnum):
    """What stands on the trunk. LANGUAGE_MODEL: the vocabulary. VALUE: a scalar for each state. SCORE: one
    score or several beside the vocabulary's head (a reward model in training may use both)."""

    LANGUAGE_MODEL = "language_model"
    VALUE = "value"
    SCORE = "score"


@dataclass(frozen=True)
class AdapterSnapshot:
    """What is trained of a model that has a low-rank adapter. scale: alpha / rank. tensors: (name as in
    `adapters.low_rank`, CPU tensor), gathered; on ranks other than 0 they are empty."""

    scale: float
    tensors: Iterator[tuple[str, Tensor]]


@dataclass(frozen=True)
class UpdatePlan:
    """How one TrainStep is cut: epochs over the batch, each in minibatches (one optimiser step each) in an
    order drawn from seed."""

    epochs: int
    minibatch_sequences: int
    seed: int


class NonFiniteLoss(ArithmeticError):
    """The loss or the gradient's norm is NaN or infinite. The weights are as before the minibatch."""


class Diverged(ArithmeticError):
    """The model's log-probabilities are NaN or infinite: its weights are of no use any more."""


class CorruptCheckpoint(ValueError):
    """A checkpoint file is missing, cut short, altered, or another model's. The message names the file."""


class TrainingBackend(Protocol):
    """One model, trained."""

    def train_step(self, batch: Batch, objective: Objective, plan: UpdatePlan) -> dict[str, float]:
        """Update the weights. Returns the objective's sums and `loss`, each a minibatch's figure averaged
        over the optimiser steps, the largest of its maxima, `gradient_norm` (before clipping, mean),
        `learning_rate` (last). Raises NonFiniteLoss."""

    def evaluate(self, batch: Batch, objective: Objective) -> dict[str, float]:
        """The objective's loss and sums over the whole batch as one minibatch, without gradient."""

    def forward(self, batch: Batch, outputs: frozenset[str]) -> dict[str, Tensor]:
        """Some of logprobs, entropy, values: float32 [T] (values of N scores: [T, N]) on the CPU, without
        gradient, as in ModelOutputs."""

    def base_forward(self, batch: Batch, outputs: frozenset[str]) -> dict[str, Tensor]:
        """`forward` of the model without its adapter: bit for bit its first weights'. Raises ValueError where
        it has none."""

    def snapshot(self) -> Iterator[tuple[str, Tensor]]:
        """(Hugging Face name, CPU tensor) of every weight, an adapter merged into it, gathered; on ranks
        other than 0 the tensors are empty."""

    def slices(self) -> Iterator[WeightSlice]:
        """This rank's pieces of every weight, an adapter merged into it, in the precision of the arithmetic
        or to be converted to it (`WeightSlice.dtype`): those of all ranks together cover each tensor of the
        checkpoint exactly once. Ties once, padding stripped. They may share the model's memory until the next
        update. Collective only where a piece cannot be had without the other ranks."""

    def adapter(self) -> AdapterSnapshot | None:
        """The adapter alone; None where all weights are trained."""

    def save(self, directory: Path) -> list[str]:
        """Write this rank's shard (what is trained, optimiser, schedule, RNG) as safetensors. Returns the
        file names it wrote."""

    def load(self, directory: Path) -> None:
        """Read what `save` wrote; the backend says whether in another layout too. Raises
        CorruptCheckpoint."""

    def export(self, directory: Path) -> None:
        """Write a Hugging Face folder (rank 0 writes; all ranks gather): the merged model, and in `adapter/`
        a PEFT adapter where there is one."""


@runtime_checkable
class KeepsPasses(Protocol):
    """A backend that need not make a pass twice."""

    def forward_and_keep(
        self, batch: Batch, outputs: frozenset[str], objective: Objective
    ) -> dict[str, Tensor]:
        """`forward` of sequences that the next update learns of: what its gradient needs of the pass may be
        kept until then."""


class FrozenBackend(Protocol):
    """One model that is only asked. It may rest in the host's memory while another needs the accelerator.
    Called on all ranks alike."""

    @property
    def pooling(self) -> str | None:
        """How a reward model's config says that its tokens' scores become a response's; None: it does not
        say."""

    @property
    def scores(self) -> tuple[str, ...]:
        """Names of a reward model's scores, in the order of its outputs."""

    def forward(self, batch: Batch, outputs: frozenset[str]) -> dict[str, Tensor]:
        """Some of logprobs, entropy, values: float32 [T] (values of N scores: [T, N]) on the CPU, as in
        ModelOutputs. Takes the accelerator's memory again."""

    def offload(self) -> object:
        """Give the accelerator's memory back until the next call."""
