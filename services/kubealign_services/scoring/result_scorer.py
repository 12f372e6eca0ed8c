"""Scorer of rollouts whose rewards are results of calls: of a function, or of another server."""

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from kubealign.spec.sections.score_calls import RewardErrorPolicy
from kubealign.v1 import rollout_pb2, scoring_pb2
from kubealign_services.scoring.functions.batching import Outcome
from kubealign_services.scoring.functions.errors import RewardError, RewardHung
from kubealign_services.scoring.functions.results import MAX_EXPLANATION, RewardResult
from kubealign_services.scoring.worker import empty_score

ERROR, TIMEOUT = "error", "timeout"

log = logging.getLogger(__name__)


class ResultScorer(ABC):
    """Scores rollouts by their outcomes; an error is that of the rollouts that cause it.

    Args:
        name: Name of the reward.
        worker: Name of this process.
        policy: Effect of an error on the score.
        on_failure: Called with ERROR or TIMEOUT for each sample that has an error.
    """

    def __init__(
        self,
        name: str,
        worker: str,
        policy: RewardErrorPolicy = RewardErrorPolicy.RETRY,
        on_failure: Callable[[str], None] = lambda kind: None,
    ) -> None:
        self._name = name
        self._worker = worker
        self._policy = policy
        self._on_failure = on_failure

    @abstractmethod
    async def _outcomes(self, rollouts: Sequence[rollout_pb2.Rollout]) -> list[Outcome]:
        """Return one outcome per rollout, in order."""

    async def __call__(self, rollouts: Sequence[rollout_pb2.Rollout]) -> list[scoring_pb2.Score]:
        """Return one score per rollout, in order."""
        started_at = time.monotonic()
        scores = [empty_score(rollout, self._name, self._worker) for rollout in rollouts]
        for score, outcome in zip(scores, await self._outcomes(rollouts), strict=True):
            if isinstance(outcome, RewardError):
                self._fail(score, outcome)
            else:
                _set_result(score, outcome)
            score.seconds = (time.monotonic() - started_at) / len(scores)
        return scores

    def _fail(self, score: scoring_pb2.Score, error: RewardError) -> None:
        """Set the score of a rollout with an error, by the policy."""
        kind = TIMEOUT if isinstance(error, RewardHung) else ERROR
        self._on_failure(kind)
        if self._policy is RewardErrorPolicy.RETRY or not error.is_of_sample:
            score.error, score.permanent = str(error), error.permanent
            return
        sample = f"row {score.group_id}, sample {score.sample}"
        if self._policy is RewardErrorPolicy.FAIL:
            score.error, score.permanent = f"{sample}: {error}; onError is {self._policy}", True
            return
        log.warning("a reward failed", extra={"sample": sample, "cause": str(error)})
        score.failure = kind
        score.explanation = str(error)[:MAX_EXPLANATION]
        if self._policy is RewardErrorPolicy.ZERO:
            score.reward = 0.0


def _set_result(score: scoring_pb2.Score, result: RewardResult) -> None:
    if result.reward is not None:
        score.reward = result.reward
    score.metrics.update(result.metrics)
    score.explanation = result.explanation
