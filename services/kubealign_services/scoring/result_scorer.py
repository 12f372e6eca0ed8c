"""Scorer of rollouts whose rewards are results of calls: of a function, or of another server."""

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from kubealign.spec.sections.score_calls import RewardErrorPolicy
from kubealign.v1 import rollout_pb2, scoring_pb2
from kubealign_services.scoring.functions.batching import Outcome
from kubealign_services.scoring.functions.errors import BadSteps, RewardError, RewardHung
from kubealign_services.scoring.functions.results import MAX_EXPLANATION, RewardResult
from kubealign_services.scoring.shortened_text import escape_surrogates
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
        outcomes = await self._outcomes(rollouts)
        for rollout, score, outcome in zip(rollouts, scores, outcomes, strict=True):
            if isinstance(outcome, RewardError):
                self._fail(score, outcome)
            else:
                await self._set_result(score, rollout, outcome)
            score.seconds = (time.monotonic() - started_at) / len(scores)
        return scores

    async def _step_rewards(
        self, rollout: rollout_pb2.Rollout, result: RewardResult
    ) -> list[rollout_pb2.TurnReward]:
        """Return the rewards of a rollout's steps, each at its last token. Raises BadSteps."""
        if result.steps is not None:
            raise BadSteps(f"reward {self._name}: returned steps, which the job does not ask for: set steps")
        return []

    async def _set_result(
        self, score: scoring_pb2.Score, rollout: rollout_pb2.Rollout, result: RewardResult
    ) -> None:
        """Set the score of a rollout with a result, or by the policy where its steps do not fit."""
        try:
            score.steps.extend(await self._step_rewards(rollout, result))
        except BadSteps as error:
            self._fail(score, error)
            return
        if result.reward is not None:
            score.reward = result.reward
        score.metrics.update(result.metrics)
        score.explanation = escape_surrogates(result.explanation)

    def _fail(self, score: scoring_pb2.Score, error: RewardError) -> None:
        """Set the score of a rollout with an error, by the policy."""
        kind = TIMEOUT if isinstance(error, RewardHung) else ERROR
        text = escape_surrogates(str(error))
        self._on_failure(kind)
        if self._policy is RewardErrorPolicy.RETRY or not error.is_of_sample:
            score.error, score.permanent = text, error.permanent
            return
        sample = f"row {score.group_id}, sample {score.sample}"
        if self._policy is RewardErrorPolicy.FAIL:
            score.error, score.permanent = f"{sample}: {text}; onError is {self._policy}", True
            return
        log.warning("a reward failed", extra={"sample": sample, "cause": text})
        score.failure = kind
        score.explanation = text[:MAX_EXPLANATION]
        if self._policy is RewardErrorPolicy.ZERO:
            score.reward = 0.0
