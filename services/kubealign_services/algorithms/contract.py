"""What an algorithm is: how advantages are made, what the losses are. Pure: tensors in, tensors out.

A loss is a sum over tokens or sequences of terms that already hold their share of the mean: `prepare` is
given the whole minibatch (all ranks, all micro-batches) and adds the weights as columns, so that the
gradient does not depend on how the work is split. The losses of the micro-batches of a minibatch simply add
up to the minibatch's loss."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from kubealign_services.batch.packed import Batch


@dataclass(frozen=True)
class ModelOutputs:
    """What a forward pass gives, each [T], in fp32 (or fp64 in tests), with gradient; None where it was not
    asked for.

    logprobs: log-probability of each token given those before it, at the batch's temperature. entropy: of
    the distribution that each token was drawn from. Both are 0 at the first of a sequence, and where the
    batch has a column loss_mask that is 0: prompts are not paid for.
    values: output of the scalar head. For a critic: at a token, the value of the state before it (that is,
    the head's output one position earlier; 0 at the first). For a reward model: the head's output at the
    token itself; [T, N] where the model has N scores.
    candidate_logprobs: [T, K], log-probabilities of the tokens in the batch's column candidates (int64
    [T, K]), each in place of the token itself, at the batch's scalar candidates_temperature (default: its
    temperature); 0 where logprobs are.
    """

    logprobs: Tensor | None = None
    entropy: Tensor | None = None
    values: Tensor | None = None
    candidate_logprobs: Tensor | None = None


@dataclass
class LossTerms:
    """loss: scalar with gradient. sums: figures that add up over micro-batches and ranks. maxima: figures
    of which the largest is kept."""

    loss: Tensor
    sums: dict[str, Tensor] = field(default_factory=dict)
    maxima: dict[str, Tensor] = field(default_factory=dict)


class Objective(Protocol):
    """One thing that a model is trained on."""

    #: Which of ModelOutputs it reads, by name.
    outputs: frozenset[str]

    #: How many consecutive sequences belong together and are never split (2 for preference pairs).
    unit: int

    def prepare(self, minibatch: Batch) -> None:
        """Add the columns that hold each token's or sequence's share of the mean. Called once per
        minibatch, before it is split."""

    def loss(self, outputs: ModelOutputs, microbatch: Batch) -> LossTerms:
        """The micro-batch's part of the minibatch's loss and metrics."""


class Algorithm(Protocol):
    """One way to align a policy. Made from its entry in the spec's algorithm union."""

    #: The trainer's forward pass over the batch before the step: whether the algorithm needs `old_logprobs`.
    needs_old_logprobs: bool
    needs_reference: bool
    needs_critic: bool

    def __init__(self, spec: Any) -> None: ...

    def policy_objective(self) -> Objective: ...

    def value_objective(self) -> Objective | None: ...

    def advantages(self, batch: Batch, state: dict[str, float]) -> dict[str, float]:
        """Add to the batch what the losses read; return the step's metrics. `state` is kept from step to
        step and across restarts (running moments, an adaptive coefficient); it may be changed.

        Sequences whose column companion is not 0 inform the others (a greedy response as baseline, a
        mismatched response) and are dropped before the losses: see `batch.companions`."""


@runtime_checkable
class ScoreAlgorithm(Protocol):
    """An algorithm that makes a reward model. Its scores have names, which figures are told apart by."""

    def score_objective(self, names: Sequence[str]) -> Objective:
        """What `policy_objective` gives, for scores with these names, in the order of the head's outputs."""


def load_algorithm(name: str) -> Callable[[Any], Algorithm]:
    """The algorithm registered under the entry-point group `kubealign.algorithms`. Raises LookupError with
    the names there are."""
    found = {entry.name: entry for entry in entry_points(group="kubealign.algorithms")}
    if name not in found:
        raise LookupError(f"no algorithm {name}; there are {sorted(found)}")
    loaded: Callable[[Any], Algorithm] = found[name].load()
    return loaded
