"""Scorer of rollouts that runs reward models."""

import time
from collections.abc import Sequence

from kubealign.spec.sections.rewards import Reward
from kubealign.v1 import rollout_pb2, scoring_pb2
from kubealign_services.batch.codec import decode
from kubealign_services.batch.packed import concatenate
from kubealign_services.data.models.reward_roles import reward_roles
from kubealign_services.data.prepared import load_prepared
from kubealign_services.runtime.process.context import ProcessContext
from kubealign_services.scoring.reward_models import (
    NonFiniteScore,
    RewardModelEnsemble,
    SequenceScorer,
    load_reward_model,
)
from kubealign_services.scoring.worker import empty_score

_MICROBATCH_TOKENS = 8192


class ModelScorer:
    """Scores many rollouts in one packed forward pass, off the event loop."""

    def __init__(self, name: str, worker: str, context: ProcessContext, model: SequenceScorer) -> None:
        self._name = name
        self._worker = worker
        self._context = context
        self._model = model

    async def __call__(self, rollouts: Sequence[rollout_pb2.Rollout]) -> list[scoring_pb2.Score]:
        """Return one score per rollout, in order."""
        started_at = time.monotonic()
        batch = concatenate([decode(rollout.sequence) for rollout in rollouts])
        scores = [empty_score(rollout, self._name, self._worker) for rollout in rollouts]
        try:
            scored = await self._context.compute(self._model.score_details, batch)
        except NonFiniteScore as error:
            for score in scores:
                score.error, score.permanent = f"reward {self._name}: {error}", True
            return scores
        for index, score in enumerate(scores):
            score.reward = float(scored.rewards[index])
            score.attributes.update(
                {name: float(values[index]) for name, values in scored.attributes.items()}
            )
            if scored.disagreement is not None:
                score.disagreement = float(scored.disagreement[index])
            score.seconds = (time.monotonic() - started_at) / len(rollouts)
        return scores


def load_model_scorer(context: ProcessContext, reward: Reward) -> ModelScorer:
    """Load the models of a reward and return their scorer. Raises DataError, UnknownAttribute."""
    return ModelScorer(reward.name, context.settings.name, context, _load_models(context, reward))


def _load_models(context: ProcessContext, reward: Reward) -> SequenceScorer:
    prepared = load_prepared(context.settings.run_dir)
    precision = context.job.spec.trainer.backend.value.precision
    models = [
        load_reward_model(
            prepared.model_folder(role), precision, _MICROBATCH_TOKENS, weights=reward.attributes
        )
        for role in reward_roles(reward)
    ]
    return models[0] if reward.ensemble is None else RewardModelEnsemble(models, reward.ensemble.aggregate)
