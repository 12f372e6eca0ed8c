"""Contract of algorithms: advantages and losses. Pure: tensors in, tensors out.

A loss is a sum over tokens or sequences of terms that already contain their share of the mean: `prepare`
gets the whole minibatch (all ranks, all microbatches) and adds the shares as columns, so that the gradient
does not depend on how the work is split. The losses of the microbatches of a minibatch add up to the
minibatch's loss.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from kubealign_services.batch.packed import Batch


@dataclass(frozen=True)
class ModelOutputs:
    """Outputs of a forward pass, each [T], in fp32 (or fp64 in tests), with gradient; None where not
    requested.

    logprobs: log-probability of each token given the tokens before it, at the batch's temperature.
    entropy: entropy of the distribution that each token was drawn from. Both are 0 at the first token of a
    sequence, and where the batch has a column loss_mask that is 0: they are not computed for prompts.
    values: output of the scalar head. For a critic: at a token, the value of the state before the token
    (the head's output one position earlier; 0 at the first). For a reward model: the head's output at the
    token itself; [T, N] where the model has N scores.
    candidate_logprobs: [T, K], log-probabilities of the tokens in the batch's column candidates (int64 [T,
    K]), each in place of the token itself, at the batch's scalar candidates_temperature (default: its
    temperature); 0 where logprobs are.
    """

    logprobs: Tensor | None = None
    entropy: Tensor | None = None
    values: Tensor | None = None
    candidate_logprobs: Tensor | None = None


@dataclass
class LossTerms:
    """loss: scalar with gradient. sums: metrics that add up over microbatches and ranks. maxima: metrics
    whose maximum is reported.
    """

    loss: Tensor
    sums: dict[str, Tensor] = field(default_factory=dict)
    maxima: dict[str, Tensor] = field(default_factory=dict)


class Objective(Protocol):
    """A training objective of one model."""

    #: Names of the ModelOutputs fields that the objective reads.
    outputs: frozenset[str]

    #: Number of consecutive sequences that belong together and are never split (2 for preference pairs).
    unit: int

    def prepare(self, minibatch: Batch) -> None:
        """Add the columns with each token's or sequence's share of the mean.

        Called once per minibatch, before the split. Samples may have several sequences, which all are in the
        minibatch: `batch.samples.merge_samples` returns one for each.
        """

    def loss(self, outputs: ModelOutputs, microbatch: Batch) -> LossTerms:
        """Return the microbatch's part of the minibatch's loss and metrics."""


class Algorithm(Protocol):
    """An alignment algorithm, constructed from its entry in the spec's algorithm union."""

    #: True if the algorithm needs `old_logprobs`: a trainer forward pass over the batch before the step.
    #: It may have `extra_old_outputs` too: names of further outputs that it needs from the same pass.
    needs_old_logprobs: bool
    needs_reference: bool
    needs_critic: bool

    def __init__(self, spec: Any) -> None: ...

    def policy_objective(self) -> Objective: ...

    def value_objective(self) -> Objective | None: ...

    def advantages(self, batch: Batch, state: dict[str, float]) -> dict[str, float]:
        """Add the columns that the losses read to the batch; return the step's metrics.

        The batch has one sequence for each sample: see `advantages.samples.add_advantages`.

        `state` is kept from step to step and across restarts (running moments, an adaptive coefficient)
        and may be modified.

        Sequences whose column companion is not 0 are auxiliary: they inform the others (a greedy response
        as baseline, a mismatched response) and are dropped before the losses, see
        `batch.auxiliary_sequences`.
        """


def outputs_before_step(algorithm: Algorithm) -> tuple[str, ...]:
    """Return the outputs of the trainer's forward pass before the step; none where there is no pass.

    The columns are named old_logprobs, old_entropy and old_collision.
    """
    if not algorithm.needs_old_logprobs:
        return ()
    return ("logprobs", *getattr(algorithm, "extra_old_outputs", ()))


@runtime_checkable
class ScoreAlgorithm(Protocol):
    """An algorithm that trains a reward model with named scores; metrics are reported by name."""

    def score_objective(self, names: Sequence[str]) -> Objective:
        """Return the `policy_objective` for scores with these names, in the order of the head's outputs."""


def require_output(output: Tensor | None, name: str) -> Tensor:
    """Return the output. Raises ValueError when the forward pass did not compute it."""
    if output is None:
        raise ValueError(f"the objective reads {name}, which the forward pass did not compute")
    return output
