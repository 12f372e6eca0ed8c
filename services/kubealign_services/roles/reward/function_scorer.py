"""Scorer of rollouts that calls a Python function."""

import time
from collections.abc import Sequence
from typing import Any

from kubealign.v1 import rollout_pb2, scoring_pb2
from kubealign_services.scoring.functions.function_reward import FunctionReward, RewardError
from kubealign_services.scoring.row_context import read_row_context
from kubealign_services.scoring.worker import empty_score


class FunctionScorer:
    """Calls the function on many rollouts at once; its errors become the scores' errors."""

    def __init__(self, name: str, worker: str, function: FunctionReward) -> None:
        self._name = name
        self._worker = worker
        self._function = function

    async def __call__(self, rollouts: Sequence[rollout_pb2.Rollout]) -> list[scoring_pb2.Score]:
        """Return one score per rollout, in order.

        If the function raises for several rollouts, each is scored alone, so that one rollout does not
        fail the others.
        """
        started_at = time.monotonic()
        scores = [empty_score(rollout, self._name, self._worker) for rollout in rollouts]
        try:
            rewards = await self._rewards(rollouts)
        except RewardError as error:
            if len(rollouts) > 1 and not error.permanent:
                return [score for rollout in rollouts for score in await self([rollout])]
            for score in scores:
                score.error = str(error)
                score.permanent = error.permanent
            return scores
        for score, reward in zip(scores, rewards, strict=True):
            if reward is not None:
                score.reward = reward
            score.seconds = (time.monotonic() - started_at) / len(scores)
        return scores

    async def _rewards(self, rollouts: Sequence[rollout_pb2.Rollout]) -> list[float | None]:
        contexts = [read_row_context(rollout) for rollout in rollouts]
        return await self._function.score(
            prompts=[context["prompt"] for context in contexts],
            responses=[rollout.response for rollout in rollouts],
            columns=transpose([context["columns"] for context in contexts]),
        )


def transpose(rows: Sequence[dict[str, Any]]) -> dict[str, list[Any]]:
    """Return rows as columns. A column that a row lacks is None for that row."""
    names = {name: None for row in rows for name in row}
    return {name: [row.get(name) for row in rows] for name in names}
