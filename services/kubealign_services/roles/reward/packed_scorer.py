"""Scorer of rollouts by a forward pass over many of them."""

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Generic, TypeVar

from kubealign.v1 import rollout_pb2, scoring_pb2
from kubealign_services.roles.reward.text_inputs import UnreadableSample
from kubealign_services.runtime.process.context import ProcessContext
from kubealign_services.scoring.reward_models import NonFiniteScore
from kubealign_services.scoring.worker import empty_score

ScoredT = TypeVar("ScoredT")


class PackedScorer(ABC, Generic[ScoredT]):
    """Scores many rollouts in one packed forward pass, off the event loop.

    A subclass implements `compute_scores` and `write_score`.
    """

    def __init__(self, name: str, worker: str, context: ProcessContext) -> None:
        self._name = name
        self._worker = worker
        self._context = context

    @abstractmethod
    def compute_scores(self, rollouts: Sequence[rollout_pb2.Rollout], /) -> ScoredT:
        """Return the scores of some rollouts. Runs in the compute thread.

        Raises UnreadableSample, NonFiniteScore.
        """

    @abstractmethod
    def write_score(self, score: scoring_pb2.Score, scored: ScoredT, index: int) -> None:
        """Fill in the score of one of the rollouts."""

    async def __call__(self, rollouts: Sequence[rollout_pb2.Rollout]) -> list[scoring_pb2.Score]:
        """Return one score per rollout, in order.

        If the model cannot read one of several rollouts, each is scored alone, so that one rollout does not
        fail the others.
        """
        started_at = time.monotonic()
        scores = [empty_score(rollout, self._name, self._worker) for rollout in rollouts]
        try:
            scored = await self._context.compute_within_deadline(self.compute_scores, rollouts)
        except UnreadableSample as error:
            if len(rollouts) > 1:
                return [score for rollout in rollouts for score in await self([rollout])]
            # Another response to the same prompt may be shorter.
            scores[0].error = f"reward {self._name}: {error}"
            return scores
        except NonFiniteScore as error:
            for score in scores:
                score.error, score.permanent = f"reward {self._name}: {error}", True
            return scores
        for index, score in enumerate(scores):
            self.write_score(score, scored, index)
            score.seconds = (time.monotonic() - started_at) / len(rollouts)
        return scores
