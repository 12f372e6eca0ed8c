"""Scorer of rollouts whose steps have rewards by a Python function."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from kubealign.spec.sections.score_calls import RewardErrorPolicy
from kubealign.v1 import rollout_pb2
from kubealign_services.batch.codec import decode
from kubealign_services.data.errors import DataError
from kubealign_services.data.prepared import load_prepared
from kubealign_services.data.tokenization.tokenizers import decode_ids
from kubealign_services.roles.reward.function_scorer import FunctionScorer, RewardCalls
from kubealign_services.runtime.process.context import ProcessContext
from kubealign_services.runtime.process.failures import PermanentFailure
from kubealign_services.scoring.functions.errors import BadSteps
from kubealign_services.scoring.functions.results import RewardResult
from kubealign_services.scoring.response_steps import Decode, find_last_tokens, split_steps

#: Argument that a function may take besides the columns of the row: the texts of each response's steps. It
#: replaces a column of this name.
STEPS = "steps"


@dataclass(frozen=True)
class StepDivision:
    """Separator of steps, and the decoding of the policy's tokens."""

    separator: str
    decode: Decode


def load_step_scorer(context: ProcessContext, separator: str) -> Callable[..., "StepScorer"]:
    """Load the policy's tokenizer and return StepScorer with its first argument bound.

    Raises PermanentFailure where the prepared job cannot be read.
    """
    try:
        tokenizer = load_prepared(context.settings.run_dir).tokenizer
    except DataError as error:
        raise PermanentFailure(str(error)) from error
    return partial(StepScorer, StepDivision(separator, partial(decode_ids, tokenizer)))


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
        separator = self._division.separator
        return {
            STEPS: [[step.text for step in split_steps(rollout.response, separator)] for rollout in rollouts]
        }

    async def _step_rewards(
        self, rollout: rollout_pb2.Rollout, result: RewardResult
    ) -> list[rollout_pb2.TurnReward]:
        if result.reward is None:
            return []
        # Decoding a long response many times would delay the heartbeats of the process.
        return await asyncio.to_thread(self._locate, rollout, result)

    def _locate(self, rollout: rollout_pb2.Rollout, result: RewardResult) -> list[rollout_pb2.TurnReward]:
        steps = split_steps(rollout.response, self._division.separator)
        if result.steps is None or len(result.steps) != len(steps):
            count = "no steps" if result.steps is None else f"{len(result.steps)} steps"
            raise BadSteps(
                f"reward {self._name}: returned {count} for a response of {len(steps)}, which the separator "
                f"{self._division.separator!r} divides: return an object whose steps are {len(steps)} numbers"
            )
        sequence = decode(rollout.sequence)
        positions = sequence.token("loss_mask").nonzero().squeeze(1).tolist()
        tokens = sequence.tokens[positions].tolist()
        try:
            last_tokens = find_last_tokens(steps, rollout.response, tokens, self._division.decode)
        except ValueError as error:
            raise BadSteps(f"reward {self._name}: cannot find the tokens of the steps: {error}") from error
        return [
            rollout_pb2.TurnReward(token=positions[index], reward=reward)
            for index, reward in zip(last_tokens, result.steps, strict=True)
        ]
