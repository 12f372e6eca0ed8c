"""Interface of a training backend: forward passes and updates of one model over any number of ranks.

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
from kubealign_services.training.files.hf_heads import HeadPooling
from kubealign_services.training.weight_slices import WeightSlice


class Head(StrEnum):
    """The output head of a model.

    LANGUAGE_MODEL: logits over the vocabulary. VALUE: a scalar for each state. SCORE: one or several scores
    in addition to the language-model head (a reward model in training may use both).
    """

    LANGUAGE_MODEL = "language_model"
    VALUE = "value"
    SCORE = "score"


@dataclass(frozen=True)
class AdapterSnapshot:
    """The trained part of a model that has a low-rank adapter.

    Attributes:
        scale: alpha / rank.
        tensors: (name as in `adapters.lora`, CPU tensor), gathered; empty tensors on ranks other than 0.
    """

    scale: float
    tensors: Iterator[tuple[str, Tensor]]


@dataclass(frozen=True)
class UpdatePlan:
    """Division of one TrainStep: epochs over the batch, each in minibatches (one optimiser step each) in an
    order drawn from seed.
    """

    epochs: int
    minibatch_sequences: int
    seed: int


class NonFiniteLoss(ArithmeticError):
    """The loss or the gradient norm is NaN or infinite. The weights are as before the minibatch.

    In fp16 a gradient that overflows raises only when the loss scale has fallen below its minimum.
    """


class ModelDiverged(ArithmeticError):
    """The model's log-probabilities are NaN or infinite: its weights are unusable."""


class CorruptCheckpoint(ValueError):
    """A checkpoint file is missing, truncated, altered, or belongs to another model.

    The message names the file.
    """


class TrainingBackend(Protocol):
    """A model in training."""

    def train_step(self, batch: Batch, objective: Objective, plan: UpdatePlan) -> dict[str, float]:
        """Update the weights.

        Returns the objective's sums and `loss` (values of a minibatch averaged over the optimiser steps), the
        largest of its maxima, `gradient_norm` (before clipping, mean), and `learning_rate` (last).

        In fp16 also `loss_scale` (of the next update) and `skipped_updates`, the number of optimiser steps
        skipped because the scaled gradient overflows. They do not count in `gradient_norm`, which is missing
        when all steps were skipped. Raises NonFiniteLoss.
        """

    def evaluate(self, batch: Batch, objective: Objective) -> dict[str, float]:
        """Return the objective's loss and sums over the whole batch as one minibatch, without gradient."""

    def forward(self, batch: Batch, outputs: frozenset[str]) -> dict[str, Tensor]:
        """Compute some of logprobs, entropy, values without gradient, as in ModelOutputs, and collision: the
        sum of the squared probabilities of the distribution that each token was drawn from.

        Returns float32 [T] (values of N scores: [T, N]) on the CPU.
        """

    def base_forward(self, batch: Batch, outputs: frozenset[str]) -> dict[str, Tensor]:
        """Compute `forward` of the model without its adapter: bit for bit the result of its first weights.

        Raises ValueError without an adapter.
        """

    def snapshot(self) -> Iterator[tuple[str, Tensor]]:
        """Yield (Hugging Face name, CPU tensor) of every weight, gathered, with the adapter merged in; on
        ranks other than 0 the tensors are empty.
        """

    def slices(self) -> Iterator[WeightSlice]:
        """Yield this rank's slices of every weight, with the adapter merged in.

        The slices are in the precision of the arithmetic or to be converted to it (`WeightSlice.dtype`). The
        slices of all ranks together cover each tensor of the checkpoint exactly once, with tied weights once
        and padding stripped. They may share the model's memory until the next update. Collective only where a
        slice cannot be computed without the other ranks.
        """

    def adapter(self) -> AdapterSnapshot | None:
        """Return the adapter alone; None when all weights are trained."""

    def save(self, directory: Path) -> list[str]:
        """Write this rank's shard (trained weights, optimiser, schedule, RNG) as safetensors.

        Returns the names of the written files.
        """

    def load(self, directory: Path) -> None:
        """Read a checkpoint that `save` wrote.

        Each backend documents whether another layout is allowed. Raises CorruptCheckpoint.
        """

    def export(self, directory: Path) -> None:
        """Write a Hugging Face folder (rank 0 writes; all ranks gather): the merged model, and a PEFT adapter
        in `adapter/` when an adapter is trained.
        """


@runtime_checkable
class ForwardCachingBackend(Protocol):
    """A backend that can reuse a forward pass in the next update."""

    def forward_and_cache(
        self, batch: Batch, outputs: frozenset[str], objective: Objective
    ) -> dict[str, Tensor]:
        """Compute `forward` of sequences that the next update trains on.

        The activations that its gradient needs may be cached until then.
        """


class FrozenBackend(Protocol):
    """A model that is only evaluated.

    Its weights can be offloaded to host memory while another model needs the accelerator. Called on all
    ranks alike.
    """

    @property
    def pooling(self) -> HeadPooling | None:
        """Pooling of token scores into a response's score, as a reward model's config states it; None when
        the config does not.
        """

    @property
    def scores(self) -> tuple[str, ...]:
        """Names of a reward model's scores, in the order of its outputs."""

    def forward(self, batch: Batch, outputs: frozenset[str]) -> dict[str, Tensor]:
        """Compute some of logprobs, entropy, values, as in ModelOutputs, after reloading the weights onto the
        accelerator. Returns float32 [T] (values of N scores: [T, N]) on the CPU.
        """

    def offload(self) -> object:
        """Free the accelerator's memory until the next call."""


class ScoringBackend(FrozenBackend, Protocol):
    """A model of a scorer: a frozen model that also gives the most likely tokens."""

    def topk_logprobs(self, batch: Batch, count: int, vocabulary: int) -> tuple[Tensor, Tensor]:
        """Compute the most likely alternatives to each response token, most likely first.

        Returns (tokens int64 [T, K], their log-probabilities float32 [T, K]) on the CPU; 0 elsewhere.

        Args:
            count: Number of tokens; K is smaller when the vocabulary is.
            vocabulary: Number of real tokens; the model's further rows are padding.
        """
