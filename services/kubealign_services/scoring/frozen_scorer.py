"""Scorer with a frozen language model: what reference and teacher have in common, on the bus and for direct
calls.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import ClassVar

from torch import Tensor

from kubealign.v1 import rollout_pb2, scoring_pb2, training_pb2
from kubealign_services.batch.codec import decode, encode_columns
from kubealign_services.batch.packed import Batch, concatenate
from kubealign_services.batch.replaced_prompts import PromptMismatch
from kubealign_services.data.prepared import PreparedJob
from kubealign_services.runtime.process.context import ProcessContext
from kubealign_services.scoring.purposes import training_purpose
from kubealign_services.scoring.replica_ranks import open_replica
from kubealign_services.scoring.serving import serve_scorer
from kubealign_services.scoring.worker import empty_score
from kubealign_services.training.contract import Head, ScoringBackend
from kubealign_services.training.expert_routing import without_routing


class NonFiniteScores(ArithmeticError):
    """The model's output is NaN or infinite: its weights are unusable, and a retry cannot succeed."""


class FrozenScorer(ABC):
    """Scores rollouts with a frozen model, many rollouts per packed forward pass, off the event loop.

    A subclass states the source of its scores and implements `compute_columns` and `write_score`.
    """

    #: Source of the scores, which is also the name of the role.
    source: ClassVar[str]

    def __init__(self, context: ProcessContext, model: ScoringBackend) -> None:
        self._context = context
        self._model = model

    @abstractmethod
    def compute_columns(self, batch: Batch) -> dict[str, Tensor]:
        """Return the model's token columns of a batch by name, each [T] or [T, K] on the CPU.

        Runs in the compute thread. Raises NonFiniteScores, PromptMismatch.
        """

    @abstractmethod
    def write_score(self, score: scoring_pb2.Score, sequence: Batch) -> None:
        """Fill in the score of one rollout's sequences, whose token columns include those of
        `compute_columns`.
        """

    def make_batch(self, rollouts: Sequence[rollout_pb2.Rollout]) -> Batch:
        """Return the rollouts' sequences as one batch, in order; a rollout may have several."""
        return decode_sequences(rollouts)

    async def __call__(self, rollouts: Sequence[rollout_pb2.Rollout]) -> list[scoring_pb2.Score]:
        """Return one score per rollout, in order."""
        started_at = time.monotonic()
        batch = self.make_batch(rollouts)
        scores = [empty_score(rollout, self.source, self._context.settings.name) for rollout in rollouts]
        try:
            batch.token_columns |= await self._context.compute_within_deadline(self.compute_columns, batch)
        except (NonFiniteScores, PromptMismatch) as error:
            for score in scores:
                score.error, score.permanent = str(error), True
            return scores
        for score, sequences in zip(scores, split_by_rollout(rollouts), strict=True):
            self.write_score(score, batch.select(sequences))
            score.seconds = (time.monotonic() - started_at) / len(rollouts)
        return scores

    async def forward(self, request: training_pb2.ForwardRequest) -> training_pb2.ForwardReply:
        """Answer a direct call with the model's columns of the request's batch."""
        columns = await self._context.compute_within_deadline(self.compute_columns, decode(request.batch))
        blob, digest = encode_columns({f"token.{name}": column for name, column in columns.items()})
        return training_pb2.ForwardReply(columns=blob, digest=digest)


async def serve_frozen_scorer(
    context: ProcessContext,
    group: str,
    create_scorer: Callable[[ScoringBackend], FrozenScorer],
    create_servicer: Callable[[FrozenScorer], object],
    prepared: PreparedJob,
    prompts: Container[str] | None = None,
) -> None:
    """Load the model and score training rollouts until stopped; ranks above 0 follow rank 0.

    Args:
        group: Process group, which is also the name of the model and of the consumer on the bus.
        prompts: As in ScoreWorker.
    """
    backend = context.job.spec.trainer.backend.value
    async with open_replica(context) as ranks:
        folder = prepared.model_folder(group)
        model = await context.compute(ranks.load, folder, Head.LANGUAGE_MODEL, backend.microbatch_tokens)
        if ranks.is_follower:
            await ranks.follow()
            return
        scorer = create_scorer(model)
        purposes = frozenset({training_purpose(context.job, scorer.source)})
        servicer = create_servicer(scorer)
        await serve_scorer(
            context, group, purposes, scorer, servicer, ranks.wait_for_failure(), prompts=prompts
        )


def decode_sequences(rollouts: Sequence[rollout_pb2.Rollout]) -> Batch:
    """Return the rollouts' sequences as one batch, in order, for a model with routers of its own.

    The policy's samples may have recorded experts, which those of the reference have not, and episodes of
    several sequences have columns of their own.
    """
    parts = [without_routing(decode(rollout.sequence)) for rollout in rollouts]
    return concatenate([replace(part, sequence_columns={}) for part in parts])


def split_by_rollout(rollouts: Sequence[rollout_pb2.Rollout]) -> list[range]:
    """Return the indices of each rollout's sequences in the batch of `decode_sequences`."""
    ends = list(accumulate(len(rollout.sequence.sample_ids) for rollout in rollouts))
    return [range(start, end) for start, end in zip([0, *ends], ends, strict=False)]
