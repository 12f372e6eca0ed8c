"""Scorer of rollouts that calls a Python function."""

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load

from kubealign.spec.sections.rewards import RewardErrorPolicy
from kubealign.v1 import rollout_pb2, scoring_pb2
from kubealign_services.runtime.rpc.errors import InvalidRequest
from kubealign_services.scoring.functions.batching import BatchedFunction
from kubealign_services.scoring.functions.function_reward import FunctionReward, RewardError, RewardHung
from kubealign_services.scoring.functions.protocol import RESPONSE_LENGTH
from kubealign_services.scoring.functions.results import MAX_EXPLANATION, RewardResult
from kubealign_services.scoring.row_context import read_row_context
from kubealign_services.scoring.worker import MAX_PULL_COUNT, empty_score

ERROR, TIMEOUT = "error", "timeout"

log = logging.getLogger(__name__)


class FunctionScorer:
    """Calls the function on many rollouts at once; an error is that of the rollouts that cause it.

    Args:
        policy: Effect of an error on the score.
        on_failure: Called with ERROR or TIMEOUT for each sample on which the function fails.
        adds_response_length: The function takes the column RESPONSE_LENGTH besides those of the row.
    """

    def __init__(
        self,
        name: str,
        worker: str,
        function: FunctionReward,
        policy: RewardErrorPolicy = RewardErrorPolicy.RETRY,
        on_failure: Callable[[str], None] = lambda kind: None,
        adds_response_length: bool = False,
    ) -> None:
        self._name = name
        self._worker = worker
        self._function = function
        self._policy = policy
        self._on_failure = on_failure
        self._adds_response_length = adds_response_length
        self._batched = BatchedFunction(self._results, MAX_PULL_COUNT, policy is RewardErrorPolicy.RETRY)

    async def __call__(self, rollouts: Sequence[rollout_pb2.Rollout]) -> list[scoring_pb2.Score]:
        """Return one score per rollout, in order."""
        started_at = time.monotonic()
        scores = [empty_score(rollout, self._name, self._worker) for rollout in rollouts]
        for score, outcome in zip(scores, await self._batched.outcomes(rollouts), strict=True):
            if isinstance(outcome, RewardError):
                self._fail(score, outcome)
            else:
                _set_result(score, outcome)
            score.seconds = (time.monotonic() - started_at) / len(scores)
        return scores

    def _fail(self, score: scoring_pb2.Score, error: RewardError) -> None:
        """Set the score of a rollout on which the function failed, by the policy."""
        kind = TIMEOUT if isinstance(error, RewardHung) else ERROR
        self._on_failure(kind)
        if self._policy is RewardErrorPolicy.RETRY or not error.is_of_sample:
            score.error, score.permanent = str(error), error.permanent
            return
        sample = f"row {score.group_id}, sample {score.sample}"
        if self._policy is RewardErrorPolicy.FAIL:
            score.error, score.permanent = f"{sample}: {error}; onError is {self._policy}", True
            return
        log.warning("a reward function failed", extra={"sample": sample, "cause": str(error)})
        score.failure = kind
        score.explanation = str(error)[:MAX_EXPLANATION]
        if self._policy is RewardErrorPolicy.ZERO:
            score.reward = 0.0

    async def _results(self, rollouts: Sequence[rollout_pb2.Rollout]) -> list[RewardResult]:
        contexts = [read_row_context(rollout) for rollout in rollouts]
        columns = transpose([context["columns"] for context in contexts])
        if self._adds_response_length:
            columns[RESPONSE_LENGTH] = [_response_length(rollout) for rollout in rollouts]
        return await self._function.score(
            prompts=[context["prompt"] for context in contexts],
            responses=[rollout.response for rollout in rollouts],
            columns=columns,
        )


def _set_result(score: scoring_pb2.Score, result: RewardResult) -> None:
    if result.reward is not None:
        score.reward = result.reward
    score.metrics.update(result.metrics)
    score.explanation = result.explanation


def _response_length(rollout: rollout_pb2.Rollout) -> int:
    """Return the number of tokens that the policy generated. Raises InvalidRequest."""
    try:
        return int(np.count_nonzero(load(rollout.sequence.columns)["token.loss_mask"]))
    except (SafetensorError, KeyError) as error:
        raise InvalidRequest(f"sequence of sample {rollout.sample} has no loss mask: {error}") from error


def transpose(rows: Sequence[dict[str, Any]]) -> dict[str, list[Any]]:
    """Return rows as columns. A column that a row lacks is None for that row."""
    names = {name: None for row in rows for name in row}
    return {name: [row.get(name) for row in rows] for name in names}
