"""Scorer of rollouts that runs reward models."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kubealign.spec.sections.rewards import Reward
from kubealign.v1 import rollout_pb2, scoring_pb2
from kubealign_services.batch.packed import Batch, pack
from kubealign_services.data.errors import DataError
from kubealign_services.data.models.reward_roles import reward_roles
from kubealign_services.data.prepared import PreparedJob, load_prepared
from kubealign_services.data.tokenization.reward_text import ScoredTokens
from kubealign_services.roles.reward.model_step_scorer import ModelStepScorer
from kubealign_services.roles.reward.packed_scorer import PackedScorer
from kubealign_services.roles.reward.servicer import RewardServicer
from kubealign_services.roles.reward.step_tokens import StepDivision
from kubealign_services.roles.reward.text_inputs import TextInputs
from kubealign_services.runtime.process.context import ProcessContext
from kubealign_services.runtime.process.failures import PermanentFailure
from kubealign_services.scoring.attributes import UnknownAttribute
from kubealign_services.scoring.frozen_scorer import decode_sequences, split_by_rollout
from kubealign_services.scoring.replica_ranks import ReplicaRanks, open_replica
from kubealign_services.scoring.reward_models import (
    ModelReward,
    RewardModelEnsemble,
    SequenceScorer,
    SequenceScores,
    build_reward,
)
from kubealign_services.scoring.row_sources import restrict_to_sources
from kubealign_services.scoring.serving import serve_scorer
from kubealign_services.scoring.step_models import StepModel
from kubealign_services.training.contract import Head

_MICROBATCH_TOKENS = 8192


@dataclass(frozen=True)
class RolloutModel:
    """A reward model with its inputs: the policy's tokens of a rollout's last sequence, or with `text` the
    model's own tokens.
    """

    model: ModelReward
    text: TextInputs | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the model's scores."""
        return self.model.names

    def score_details(self, rollouts: Sequence[rollout_pb2.Rollout]) -> SequenceScores:
        """Implement SequenceScorer. Raises UnreadableSample as well."""
        batch = decode_sequences(rollouts)
        batch = batch.select([sequences[-1] for sequences in split_by_rollout(rollouts)])
        if self.text is not None:
            batch = _pack_texts([self.text.tokenize(rollout) for rollout in rollouts], batch.sample_ids)
        return self.model.score_details(batch)


class ModelScorer(PackedScorer[SequenceScores]):
    """Scores whole responses by one model or several."""

    def __init__(
        self,
        name: str,
        worker: str,
        context: ProcessContext,
        model: SequenceScorer[Sequence[rollout_pb2.Rollout]],
    ) -> None:
        super().__init__(name, worker, context)
        self._model = model

    def compute_scores(self, rollouts: Sequence[rollout_pb2.Rollout], /) -> SequenceScores:
        return self._model.score_details(rollouts)

    def write_score(self, score: scoring_pb2.Score, scored: SequenceScores, index: int) -> None:
        score.reward = float(scored.rewards[index])
        score.attributes.update({name: float(values[index]) for name, values in scored.attributes.items()})
        if scored.disagreement is not None:
            score.disagreement = float(scored.disagreement[index])


async def serve_model_scorer(context: ProcessContext, reward: Reward, purposes: frozenset[str]) -> None:
    """Load the models of a reward and score until stopped; ranks above 0 follow rank 0.

    Raises PermanentFailure when the models cannot score the job's samples.
    """
    async with open_replica(context) as ranks:
        try:
            models = await context.compute(load_model_scorer, context, reward, ranks)
        except (DataError, UnknownAttribute) as error:
            raise PermanentFailure(str(error)) from error
        if ranks.is_follower:
            await ranks.follow()
            return
        scorer = restrict_to_sources(models, reward.name, context.settings.name, reward.sources)
        servicer = RewardServicer(scorer)
        consumer = f"reward-{reward.name}"
        await serve_scorer(context, consumer, purposes, scorer, servicer, ranks.wait_for_failure())


def load_model_scorer(
    context: ProcessContext, reward: Reward, ranks: ReplicaRanks
) -> ModelScorer | ModelStepScorer:
    """Load the models of a reward and return their scorer. Raises DataError, UnknownAttribute."""
    prepared = load_prepared(context.settings.run_dir)
    if reward.steps is not None:
        (role,) = reward_roles(reward)
        model = StepModel(ranks.load(prepared.model_folder(role), Head.SCORE, _MICROBATCH_TOKENS).forward)
        division = StepDivision.load(context, reward.steps.separator)
        return ModelStepScorer(reward.name, context.settings.name, context, model, reward.steps, division)
    models = [_load_model(context, prepared, role, reward, ranks) for role in reward_roles(reward)]
    combined = (
        models[0] if reward.ensemble is None else RewardModelEnsemble(models, reward.ensemble.aggregate)
    )
    return ModelScorer(reward.name, context.settings.name, context, combined)


def _load_model(
    context: ProcessContext, prepared: PreparedJob, role: str, reward: Reward, ranks: ReplicaRanks
) -> RolloutModel:
    folder = prepared.model_folder(role)
    model = build_reward(ranks.load(folder, Head.SCORE, _MICROBATCH_TOKENS), reward.attributes)
    if role not in prepared.report.text_rewards:
        return RolloutModel(model)
    context.logger.info(
        "the reward model's tokenizer is not the policy's: responses are scored as text",
        extra={"reward_model": role},
    )
    return RolloutModel(model, TextInputs.load(context.job, folder, role, prepared.tokenizer))


def _pack_texts(texts: Sequence[ScoredTokens], sample_ids: Sequence[str]) -> Batch:
    batch = pack([text.tokens for text in texts], sample_ids)
    masks = [text.response_mask for text in texts]
    known = [bit for mask in masks if mask is not None for bit in mask]
    if len(known) == len(batch.tokens):
        batch.token_columns["loss_mask"] = torch.tensor(known, dtype=torch.uint8)
    return batch
