"""Scorer of rollouts that calls a Python function."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load

from kubealign.spec.sections.score_calls import RewardErrorPolicy
from kubealign.v1 import rollout_pb2
from kubealign_services.runtime.rpc.errors import InvalidRequest
from kubealign_services.scoring.functions.batching import BatchedFunction, Outcome
from kubealign_services.scoring.functions.protocol import RESPONSE_LENGTH
from kubealign_services.scoring.functions.results import RewardResult
from kubealign_services.scoring.result_scorer import ResultScorer
from kubealign_services.scoring.row_context import read_row_context
from kubealign_services.scoring.worker import MAX_PULL_COUNT


class RewardCalls(Protocol):
    """Calls of one reward function."""

    async def score(
        self, prompts: Sequence[str], responses: Sequence[str], columns: dict[str, list[Any]]
    ) -> list[RewardResult]:
        """Return one result per response. Raises RewardError."""


class FunctionScorer(ResultScorer):
    """Calls the function on many rollouts at once.

    Args:
        adds_response_length: The function takes the column RESPONSE_LENGTH besides those of the row.
    """

    def __init__(
        self,
        name: str,
        worker: str,
        function: RewardCalls,
        policy: RewardErrorPolicy = RewardErrorPolicy.RETRY,
        on_failure: Callable[[str], None] = lambda kind: None,
        adds_response_length: bool = False,
    ) -> None:
        super().__init__(name, worker, policy, on_failure)
        self._function = function
        self._adds_response_length = adds_response_length
        self._batched = BatchedFunction(self._results, MAX_PULL_COUNT, policy is RewardErrorPolicy.RETRY)

    async def _outcomes(self, rollouts: Sequence[rollout_pb2.Rollout]) -> list[Outcome]:
        return await self._batched.outcomes(rollouts)

    async def _results(self, rollouts: Sequence[rollout_pb2.Rollout]) -> list[RewardResult]:
        contexts = [read_row_context(rollout) for rollout in rollouts]
        return await self._function.score(
            prompts=[context["prompt"] for context in contexts],
            responses=[rollout.response for rollout in rollouts],
            columns=transpose([context["columns"] for context in contexts]) | self._extra_columns(rollouts),
        )

    def _extra_columns(self, rollouts: Sequence[rollout_pb2.Rollout]) -> dict[str, list[Any]]:
        """Return the columns that the function takes besides those of the rows."""
        if not self._adds_response_length:
            return {}
        return {RESPONSE_LENGTH: [_response_length(rollout) for rollout in rollouts]}


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
