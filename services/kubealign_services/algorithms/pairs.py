"""What all that learn from pairs have in common: a loss of two responses, and what people watch of it."""

from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from kubealign_services.algorithms.contract import LossTerms, ModelOutputs
from kubealign_services.algorithms.outputs import required
from kubealign_services.algorithms.responses import Responses, responses, told_apart
from kubealign_services.algorithms.weights import sequence_shares
from kubealign_services.batch.packed import Batch


@dataclass(frozen=True)
class Pairs:
    """P pairs. rating_gap: [P], by how much the chosen is rated better; None where the rows say nothing."""

    chosen: Responses
    rejected: Responses
    rating_gap: Tensor | None


@dataclass(frozen=True)
class Compared:
    """[P] each. loss: of the pair, whole. chosen_reward, rejected_reward: how good the policy takes each
    response to be, on the method's own scale. also: further figures, whose means are reported."""

    loss: Tensor
    chosen_reward: Tensor
    rejected_reward: Tensor
    also: dict[str, Tensor] = field(default_factory=dict)


class Comparison(Protocol):
    """One method's maths."""

    def __call__(self, pairs: Pairs) -> Compared: ...


class PairObjective:
    """mean over pairs of the comparison's loss. Sequences come as consecutive pairs: chosen, rejected.

    Reads the token columns loss_mask and, with `reference`, reference_logprobs; with `rated`, the sequence
    column rating."""

    outputs = frozenset({"logprobs"})
    unit = 2

    def __init__(self, compare: Comparison, *, reference: bool, rated: bool = False) -> None:
        self._compare = compare
        self._reference = reference
        self._rated = rated

    def prepare(self, minibatch: Batch) -> None:
        """Raises ValueError for half a pair."""
        if len(minibatch) % 2 != 0:
            raise ValueError(f"preferences come in pairs of sequences, and there are {len(minibatch)}")
        minibatch.sequence_columns["sequence_shares"] = sequence_shares(minibatch)

    def loss(self, outputs: ModelOutputs, microbatch: Batch) -> LossTerms:
        logprobs = required(outputs.logprobs, "logprobs")
        both = responses(logprobs, microbatch, self._reference)
        each = microbatch.sequence("sequence_shares").to(both.logprob)
        share = each[0::2] + each[1::2]
        gap = None
        if self._rated:
            ratings = microbatch.sequence("rating").to(both.logprob)
            gap = ratings[0::2] - ratings[1::2]
        pairs = Pairs(both.every_second(0), both.every_second(1), gap)
        found = self._compare(pairs)
        loss = (share * found.loss).sum()
        margin = found.chosen_reward - found.rejected_reward
        means = {
            "preference/loss": found.loss,
            "preference/accuracy": told_apart(margin),
            "preference/margin": margin,
            "preference/chosen_reward": found.chosen_reward,
            "preference/rejected_reward": found.rejected_reward,
            "preference/chosen_logprob": pairs.chosen.mean_logprob,
            "preference/rejected_logprob": pairs.rejected.mean_logprob,
            **found.also,
        }
        if self._reference:
            # A better margin may be bought with less of both: seen here before it is seen in samples.
            means["preference/chosen_lost"] = pairs.chosen.log_ratio < 0
        return LossTerms(loss, {name: (share * value.detach()).sum() for name, value in means.items()})
