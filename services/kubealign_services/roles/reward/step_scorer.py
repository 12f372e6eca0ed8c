"""Scorer of rollouts whose steps have rewards by a Python function."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from kubealign.spec.sections.score_calls import RewardErrorPolicy
from kubealign.v1 import rollout_pb2
from kubealign_services.roles.reward.function_scorer import FunctionScorer, RewardCalls
from kubealign_services.roles.reward.step_tokens import StepDivision
from kubealign_services.scoring.functions.errors import BadSteps
from kubealign_services.scoring.functions.results import RewardResult

#: Argument that a function may take besides the columns of the row: the texts of each response's steps. It
#: replaces a column of this name.
STEPS = "steps"


class StepScorer(FunctionScorer):
    """Calls a function that returns one reward for each step of a response."""

    def __init__(
        self,
        division: StepDivision,
        name: str,
        worker: str,
        function: RewardCalls,
        policy: RewardErrorPolicy = RewardErrorPolicy.RETRY,
        on_failure: Callable[[str], None] = lambda kind: None,
    ) -> None:
        super().__init__(name, worker, function, policy, on_failure)
        self._division = division

    def _extra_columns(self, rollouts: Sequence[rollout_pb2.Rollout]) -> dict[str, list[Any]]:
        return {STEPS: [[step.text for step in self._division.split(rollout)] for rollout in rollouts]}

    async def _step_rewards(
        self, rollout: rollout_pb2.Rollout, result: RewardResult
    ) -> list[rollout_pb2.TurnReward]:
        if result.reward is None:
            return []
        # Decoding a long response many times would delay the heartbeats of the process.
        return await asyncio.to_thread(self._locate, rollout, result)

    def _locate(self, rollout: rollout_pb2.Rollout, result: RewardResult) -> list[rollout_pb2.TurnReward]:
        steps = self._division.split(rollout)
        if result.steps is None or len(result.steps) != len(steps):
            count = "no steps" if result.steps is None else f"{len(result.steps)} steps"
            raise BadSteps(
                f"reward {self._name}: returned {count} for a response of {len(steps)}, which the separator "
                f"{self._division.separator!r} divides: return an object whose steps are {len(steps)} numbers"
            )
        try:
            last_tokens = self._division.last_tokens(rollout)
        except ValueError as error:
            raise BadSteps(f"reward {self._name}: cannot find the tokens of the steps: {error}") from error
        return [
            rollout_pb2.TurnReward(token=token, reward=reward)
            for token, reward in zip(last_tokens, result.steps, strict=True)
        ]
