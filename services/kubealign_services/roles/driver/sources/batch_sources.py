"""Batch sources: rows of a data set, or groups sampled from the policy."""

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from kubealign.spec.sections.rewards import Reward
from kubealign_services.batch.packed import Batch
from kubealign_services.batch.samples import copy_columns, merge_samples
from kubealign_services.roles.driver.errors import ShutdownRequested
from kubealign_services.roles.driver.frozen_models.teacher import TEACHER, add_sample_candidates
from kubealign_services.roles.driver.metrics.batch_metrics import (
    data_metrics,
    response_metrics,
    reward_failure_metrics,
    score_detail_metrics,
    scoring_seconds,
    source_reward_metrics,
    wait_metrics,
)
from kubealign_services.roles.driver.metrics.report import SampleText, StepRecord
from kubealign_services.roles.driver.rollouts.batch_assembly import (
    SamplingInfo,
    assemble_batch,
    make_sample_id,
)
from kubealign_services.roles.driver.rollouts.group_buffer import GroupBuffer
from kubealign_services.roles.driver.rollouts.group_tracker import RolloutGroup
from kubealign_services.roles.driver.rollouts.prefetch import ForwardPrefetcher
from kubealign_services.roles.driver.rollouts.prompt_source import TrainingPrompts
from kubealign_services.roles.driver.sources.row_batches import RowBatches
from kubealign_services.roles.driver.state import JobState
from kubealign_services.scoring.combination import combine_rewards


class BatchSource(Protocol):
    """Source of one batch per step."""

    async def next_batch(self, state: JobState, step: StepRecord) -> Batch | None:
        """Return the next batch; None when the data has run out.

        Raises UnrecoverableError, ShutdownRequested.
        """

    def state_after(self, state: JobState) -> JobState:
        """Return the state that follows once the batch just taken is trained on."""


class FrozenModels(Protocol):
    """Client of frozen models that score given rows: a reference (log-probabilities) or a teacher
    (candidates).
    """

    async def add_columns(self, batch: Batch, step: StepRecord) -> None:
        """Add the models' columns.

        The batch's sample ids are the rows' names. Raises UnrecoverableError, ShutdownRequested.
        """


class NoFrozenModels:
    """No-op client for an algorithm that trains on the rows alone."""

    async def add_columns(self, batch: Batch, step: StepRecord) -> None:
        return None


class RowSource:
    """Rows of the data set in epoch order."""

    def __init__(
        self,
        prompts: TrainingPrompts,
        dropped_rows: int,
        rows_per_step: int,
        batches: RowBatches,
        stop: asyncio.Event,
        frozen_models: FrozenModels,
    ) -> None:
        self._frozen_models = frozen_models
        self._prompts = prompts
        self._dropped_rows = dropped_rows
        self._stop = stop
        self._rows_per_step = rows_per_step
        self._batches = batches
        self._batch_prompts: list[str] = []

    async def next_batch(self, state: JobState, step: StepRecord) -> Batch | None:
        if self._stop.is_set():
            raise ShutdownRequested
        names: list[str] = []
        while len(names) < self._rows_per_step and (name := await self._prompts.next_prompt()) is not None:
            names.append(name)
        self._batch_prompts = names
        if not names:
            return None
        batch = self._batches.build(names)
        await self._frozen_models.add_columns(batch, step)
        step.add({"batch/tokens": len(batch.tokens), "batch/sequences": len(batch)})
        step.add(data_metrics(self._prompts, self._dropped_rows, names))
        return batch

    def state_after(self, state: JobState) -> JobState:
        next_state = state.copy_for_next_step()
        next_state.cursor = self._prompts.cursor
        next_state.stream = self._prompts.commit(())
        next_state.trained = self._batch_prompts
        return next_state


class BatchScorer(Protocol):
    """Scorers hosted by critic or trainer, called once the groups are complete."""

    async def score(self, batch: Batch, step: StepRecord) -> None:
        """Add the columns reward.NAME and reference_logprobs."""


@dataclass(frozen=True)
class SampleScorers:
    """Rewards of the samples and the scorers that compute them.

    Args:
        bus_rewards: Names of the rewards that are scored on the bus.
        bus_reference: Source of the reference log-probabilities that come from the bus; None: none do.
        colocated: Scorers hosted by critic or trainer.
        teacher_temperature: Temperature of a teacher's candidates, which come from the bus; None: no teacher.
    """

    rewards: Sequence[Reward]
    bus_rewards: Sequence[str]
    bus_reference: str | None
    colocated: BatchScorer
    teacher_temperature: float | None = None

    @property
    def bus_sources(self) -> tuple[str, ...]:
        """Sources of the scores of each sample on the bus."""
        frozen = (self.bus_reference, None if self.teacher_temperature is None else TEACHER)
        return (*self.bus_rewards, *(source for source in frozen if source is not None))


class GroupSource:
    """Groups sampled from the policy, joined with their rewards."""

    def __init__(
        self,
        prompts: TrainingPrompts,
        dropped_rows: int,
        buffer: GroupBuffer,
        scorers: SampleScorers,
        sampling: SamplingInfo,
        prefetchers: Sequence[ForwardPrefetcher],
    ) -> None:
        """Set up the source.

        Args:
            prefetchers: Prefetch columns of generated groups while others are still generated or scored.
        """
        self._prompts = prompts
        self._dropped_rows = dropped_rows
        self._buffer = buffer
        self._scorers = scorers
        self._sampling = sampling
        self._prefetchers = prefetchers
        self._batch_prompts: list[str] = []

    async def next_batch(self, state: JobState, step: StepRecord) -> Batch | None:
        curriculum = self._prompts.curriculum
        if curriculum is not None:
            curriculum.commit(state)
        requested_at, discarded = time.monotonic(), self._buffer.discarded_groups

        def pack_unscored(part: Sequence[RolloutGroup]) -> Batch:
            return assemble_batch(part, (), self._sampling, state.version, reference=None)

        def submit_ready(generated_groups: Sequence[RolloutGroup], missing: int) -> None:
            for prefetcher in self._prefetchers:
                prefetcher.submit_ready(generated_groups, missing, pack_unscored)

        groups = await self._buffer.take_batch(state.version, submit_ready)
        if not groups:
            return None
        self._batch_prompts = [group.group_id for group in groups]
        taken_at = time.monotonic()
        last_generated_at = max(requested_at, *(group.generated_at or requested_at for group in groups))
        step.add_phase("generate", requested_at, last_generated_at)
        step.add_phase("score", last_generated_at, taken_at)
        step.add(wait_metrics(groups, requested_at, taken_at))
        scorers = self._scorers
        batch = assemble_batch(
            groups, scorers.bus_rewards, self._sampling, state.version, scorers.bus_reference
        )
        await scorers.colocated.score(batch, step)
        if scorers.teacher_temperature is not None:
            candidates = [
                group.score(sample, TEACHER) for group in groups for sample in sorted(group.rollouts)
            ]
            add_sample_candidates(batch, candidates, scorers.teacher_temperature)
        scores = [
            group.score(sample, source)
            for group in groups
            for sample in group.rollouts
            for source in scorers.bus_sources
        ]
        step.add(score_detail_metrics(scores) | reward_failure_metrics(scores) | scoring_seconds(scores))
        samples = merge_samples(batch)
        step.add(combine_rewards(samples, scorers.rewards, state.step + 1, state.rewards))
        copy_columns(samples, batch)
        step.add(source_reward_metrics(samples, self._prompts))
        if curriculum is not None:
            curriculum.measure(samples)
            step.add(curriculum.metrics())
        step.add(response_metrics(batch, state.version))
        step.add(data_metrics(self._prompts, self._dropped_rows, self._batch_prompts))
        step.sample_texts = collect_sample_texts(groups)
        step.attempts = {group.group_id: group.attempt for group in groups}
        step.add(
            {
                "rollout/groups_in_flight": self._buffer.groups_in_flight,
                "rollout/groups_waiting": self._buffer.groups_waiting,
                "rollout/groups_discarded": self._buffer.discarded_groups - discarded,
                "data/discarded_groups": self._buffer.discarded_groups,
                "data/uninformative_groups": self._buffer.uninformative_groups,
                "data/given_up_prompts": len(state.given_up) + len(self._buffer.failed_prompts),
            }
        )
        return batch

    def state_after(self, state: JobState) -> JobState:
        next_state = state.copy_for_next_step()
        next_state.cursor = self._prompts.cursor
        next_state.unfinished = [*self._buffer.outstanding_prompts, *self._prompts.unfinished]
        next_state.stream = self._prompts.commit(next_state.unfinished)
        next_state.trained = self._batch_prompts
        next_state.given_up = [*state.given_up, *self._buffer.failed_prompts]
        if self._prompts.curriculum is not None:
            next_state.curriculum = self._prompts.curriculum.state_after(self._batch_prompts)
        self._buffer.failed_prompts.clear()
        return next_state


def collect_sample_texts(groups: Sequence[RolloutGroup]) -> dict[str, SampleText]:
    """Return sample id (as in the batch) -> texts of the sample."""
    texts: dict[str, SampleText] = {}
    for group in groups:
        explanations = group.explanations()
        for sample, rollout in group.rollouts.items():
            texts[make_sample_id(group.group_id, sample)] = SampleText(
                json.loads(rollout.columns)["prompt"], rollout.response, explanations[sample]
            )
    return texts
