"""Scorer of rollouts that runs a process reward model."""

import time
from collections.abc import Sequence

from kubealign.spec.sections.step_rewards import RewardSteps
from kubealign.v1 import rollout_pb2, scoring_pb2
from kubealign_services.roles.reward.step_tokens import StepDivision
from kubealign_services.runtime.process.context import ProcessContext
from kubealign_services.scoring.frozen_scorer import decode_sequences
from kubealign_services.scoring.reward_models import NonFiniteScore
from kubealign_services.scoring.step_models import StepModel, aggregate_steps
from kubealign_services.scoring.worker import empty_score


class UnreadableSteps(ValueError):
    """The tokens of a response's steps cannot be found."""


class ModelStepScorer:
    """Scores the steps of many rollouts in one packed forward pass, off the event loop."""

    def __init__(
        self,
        name: str,
        context: ProcessContext,
        model: StepModel,
        steps: RewardSteps,
        division: StepDivision,
    ) -> None:
        self._name = name
        self._context = context
        self._model = model
        self._steps = steps
        self._division = division

    async def __call__(self, rollouts: Sequence[rollout_pb2.Rollout]) -> list[scoring_pb2.Score]:
        """Return one score per rollout, in order.

        If the steps of one of several rollouts cannot be found, each is scored alone, so that one rollout
        does not fail the others.
        """
        started_at = time.monotonic()
        worker = self._context.settings.name
        scores = [empty_score(rollout, self._name, worker) for rollout in rollouts]
        try:
            scored = await self._context.compute_within_deadline(self._score_steps, rollouts)
        except UnreadableSteps as error:
            if len(rollouts) > 1:
                return [score for rollout in rollouts for score in await self([rollout])]
            scores[0].error = f"reward {self._name}: {error}"
            return scores
        except NonFiniteScore as error:
            for score in scores:
                score.error, score.permanent = f"reward {self._name}: {error}", True
            return scores
        for score, steps in zip(scores, scored, strict=True):
            values = [step.reward for step in steps]
            score.reward = aggregate_steps(values, self._steps.aggregate)
            if self._steps.rewards_steps:
                score.steps.extend(steps)
            score.metrics["steps"] = len(steps)
            if steps:
                score.metrics["lowest_step"] = min(values)
            score.seconds = (time.monotonic() - started_at) / len(rollouts)
        return scores

    def _score_steps(self, rollouts: Sequence[rollout_pb2.Rollout]) -> list[list[rollout_pb2.TurnReward]]:
        """Return the score of each step of each rollout, at the step's last token.

        Raises UnreadableSteps, NonFiniteScore.
        """
        try:
            last_tokens = [self._division.last_tokens(rollout) for rollout in rollouts]
        except ValueError as error:
            raise UnreadableSteps(f"cannot find the tokens of the steps: {error}") from error
        scores = self._model.score(decode_sequences(rollouts), last_tokens)
        return [
            [
                rollout_pb2.TurnReward(token=token, reward=reward)
                for token, reward in zip(tokens, rewards, strict=True)
            ]
            for tokens, rewards in zip(last_tokens, scores, strict=True)
        ]
