"""Rewards of samples that were revised after sampling."""

from collections.abc import Sequence
from dataclasses import replace

from kubealign.spec.sections.rewards import Reward
from kubealign_services.roles.driver.rollouts.work_items import encode_scoring_context
from kubealign_services.roles.driver.data_generation.sample_metrics import build_batch
from kubealign_services.roles.driver.data_generation.rewarding import add_rewards
from kubealign_services.roles.driver.data_generation.samples import PolicySample
from kubealign_services.roles.driver.data_generation.state import DataGenerationState
from kubealign_services.roles.driver.metrics.report import StepRecord
from kubealign_services.roles.driver.frozen_models.scores import RowScorer, ScoringContext


class SampleScorer:
    """Sample stage that scores each sample as if its response had been sampled for its prompt."""

    def __init__(self, rewards: Sequence[Reward], scores: RowScorer) -> None:
        self._rewards = rewards
        self._scores = scores

    async def __call__(
        self, samples: Sequence[PolicySample], state: DataGenerationState, step: StepRecord
    ) -> list[PolicySample]:
        if not samples:
            return []
        contexts = [
            ScoringContext(encode_scoring_context(sample.row.prompt_text, sample.row.columns), sample.text) for sample in samples
        ]
        with step.phase("score"):
            all_scores = await self._scores.score_all(build_batch(samples), contexts)
        scored = [
            replace(sample, rewards={name: score.reward for name, score in scores.items()})
            for sample, scores in zip(samples, all_scores, strict=True)
        ]
        return add_rewards(scored, self._rewards, state, step)
