"""Rewards of samples that were revised after sampling."""

from collections.abc import Sequence
from dataclasses import replace

from kubealign.spec.rewards import Reward
from kubealign_services.driver.items import context_json
from kubealign_services.driver.making.figures import batch_of
from kubealign_services.driver.making.rewarding import rewarded
from kubealign_services.driver.making.samples import Sample
from kubealign_services.driver.making.state import MakingState
from kubealign_services.driver.report import StepFigures
from kubealign_services.driver.row_scores import RowScores, Told


class Scoring:
    """Sample stage that scores each sample as if its response had been sampled for its prompt."""

    def __init__(self, rewards: Sequence[Reward], scores: RowScores) -> None:
        self._rewards = rewards
        self._scores = scores

    async def __call__(
        self, samples: Sequence[Sample], state: MakingState, step: StepFigures
    ) -> list[Sample]:
        if not samples:
            return []
        contexts = [
            Told(context_json(sample.row.prompt_text, sample.row.columns), sample.text) for sample in samples
        ]
        with step.phase("score"):
            all_scores = await self._scores.all_of(batch_of(samples), contexts)
        scored = [
            replace(sample, rewards={name: score.reward for name, score in scores.items()})
            for sample, scores in zip(samples, all_scores, strict=True)
        ]
        return rewarded(scored, self._rewards, state, step)
