"""Scorer of rollouts that runs a process reward model."""

from collections.abc import Sequence

from kubealign.spec.sections.step_rewards import RewardSteps
from kubealign.v1 import rollout_pb2, scoring_pb2
from kubealign_services.roles.reward.packed_scorer import PackedScorer
from kubealign_services.roles.reward.step_tokens import StepDivision
from kubealign_services.roles.reward.text_inputs import UnreadableSample
from kubealign_services.runtime.process.context import ProcessContext
from kubealign_services.scoring.frozen_scorer import decode_sequences
from kubealign_services.scoring.step_models import StepModel, aggregate_steps

#: Score of each step of each rollout, at the step's last token.
StepScores = list[list[rollout_pb2.TurnReward]]


class ModelStepScorer(PackedScorer[StepScores]):
    """Scores the steps of responses by a process reward model."""

    def __init__(
        self,
        name: str,
        worker: str,
        context: ProcessContext,
        model: StepModel,
        steps: RewardSteps,
        division: StepDivision,
    ) -> None:
        super().__init__(name, worker, context)
        self._model = model
        self._steps = steps
        self._division = division

    def compute_scores(self, rollouts: Sequence[rollout_pb2.Rollout], /) -> StepScores:
        try:
            last_tokens = [self._division.last_tokens(rollout) for rollout in rollouts]
        except ValueError as error:
            raise UnreadableSample(f"cannot find the tokens of the steps: {error}") from error
        scores = self._model.score(decode_sequences(rollouts), last_tokens)
        return [
            [
                rollout_pb2.TurnReward(token=token, reward=reward)
                for token, reward in zip(tokens, rewards, strict=True)
            ]
            for tokens, rewards in zip(last_tokens, scores, strict=True)
        ]

    def write_score(self, score: scoring_pb2.Score, scored: StepScores, index: int) -> None:
        steps = scored[index]
        values = [step.reward for step in steps]
        score.reward = aggregate_steps(values, self._steps.aggregate)
        if self._steps.rewards_steps:
            score.steps.extend(steps)
        score.metrics["steps"] = len(steps)
        if steps:
            score.metrics["lowest_step"] = min(values)
