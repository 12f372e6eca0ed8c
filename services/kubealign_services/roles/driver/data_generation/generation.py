"""Generates rows from samples of the policy: sample, revise, score, select or compare."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from kubealign.spec.sections.rewards import Reward
from kubealign_services.data.prepared import PreparedRow
from kubealign_services.roles.driver.data_generation.requests import (
    SAMPLES_PURPOSE,
    STAGE_PURPOSE,
    PolicyRequest,
    RequestClient,
)
from kubealign_services.roles.driver.data_generation.samples import (
    PolicySample,
    SampleMetrics,
    add_rewards,
    build_batch,
    collect_samples,
)
from kubealign_services.roles.driver.data_generation.state import DataGenerationState
from kubealign_services.roles.driver.frozen_models.scores import RowScorer, ScoringContext
from kubealign_services.roles.driver.metrics.report import StepRecord
from kubealign_services.roles.driver.rollouts.work_items import encode_scoring_context
from kubealign_services.scoring.worker import read_reward


class SampleStage(Protocol):
    """Transformation of samples, such as a revision or scoring."""

    async def __call__(
        self, samples: Sequence[PolicySample], state: DataGenerationState, step: StepRecord
    ) -> list[PolicySample]:
        """Return the transformed samples in order; dropped samples are counted in the state."""


class RowSelector(Protocol):
    """Selection of the rows of a step from its samples."""

    async def __call__(
        self, samples: Sequence[PolicySample], state: DataGenerationState, step: StepRecord
    ) -> list[dict[str, Any]]:
        """Return the rows in the order of the prompts; prompts without a row are counted in the state."""


@dataclass(frozen=True)
class RowGenerator:
    """Row maker that samples responses of the policy.

    Args:
        sources: Names of the rewards on the bus that score the first samples; empty if a stage scores
            revised samples.
    """

    rows: Sequence[PreparedRow]
    client: RequestClient
    samples_per_prompt: int
    rewards: Sequence[Reward]
    sources: Sequence[str]
    stages: Sequence[SampleStage]
    selector: RowSelector
    metrics: SampleMetrics

    async def make(
        self, indices: Sequence[int], state: DataGenerationState, step: StepRecord
    ) -> list[dict[str, Any]]:
        """Return the rows generated from the prompts at these indices."""
        samples = await self._sample([self.rows[index] for index in indices], state, step)
        for stage in self.stages:
            samples = await stage(samples, state, step)
        self.metrics.add_metrics(samples, step)
        return await self.selector(samples, state, step)

    async def _sample(
        self, rows: Sequence[PreparedRow], state: DataGenerationState, step: StepRecord
    ) -> list[PolicySample]:
        """Sample the responses of each row's prompt."""
        requests = {
            f"0/{row.row}": (
                row,
                PolicyRequest(f"0/{row.row}", row.prompt_tokens, row.prompt_text, row.columns),
            )
            for row in rows
        }
        requested_at = time.monotonic()
        groups = await self.client(
            [request for _, request in requests.values()],
            self.samples_per_prompt,
            state,
            STAGE_PURPOSE if self.stages else SAMPLES_PURPOSE,
            self.sources,
        )
        generated = max([requested_at, *(group.generated_at or requested_at for group in groups.values())])
        step.add_phase("generate", requested_at, generated)
        samples = [
            sample
            for name, group in groups.items()
            for sample in collect_samples(requests[name][0], group, self.sources)
        ]
        if not self.sources:
            return samples
        step.add_phase("score", generated, time.monotonic())
        return add_rewards(samples, self.rewards, state, step)


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
            ScoringContext(encode_scoring_context(sample.row.prompt_text, sample.row.columns), sample.text)
            for sample in samples
        ]
        with step.phase("score"):
            all_scores = await self._scores.score_all(build_batch(samples), contexts)
        scored = [
            replace(sample, rewards={name: read_reward(score) for name, score in scores.items()})
            for sample, scores in zip(samples, all_scores, strict=True)
        ]
        return add_rewards(scored, self._rewards, state, step)
