"""Generates the rows of a round: samples responses, scores or judges them, builds rows, adds reference
log-probabilities.
"""

import asyncio
import copy
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from kubealign.spec.sections.rewards import Reward
from kubealign_services.algorithms.iterative.rounds import RoundAlgorithm, RoundRows, pack_rows
from kubealign_services.batch.packed import Batch
from kubealign_services.batch.reward_columns import read_sums
from kubealign_services.data.prepared import PreparedRow
from kubealign_services.roles.driver.metrics.batch_metrics import (
    data_metrics,
    response_metrics,
    source_reward_metrics,
)
from kubealign_services.roles.driver.metrics.logprob_gap_gate import LogprobGapGate
from kubealign_services.roles.driver.metrics.report import StepRecord
from kubealign_services.roles.driver.rollouts.batch_assembly import (
    SamplingInfo,
    assemble_batch,
    to_algorithm_prompt,
)
from kubealign_services.roles.driver.rollouts.collector import RolloutCollector
from kubealign_services.roles.driver.rollouts.group_buffer import GroupBuffer, GroupBufferOptions, GroupPlan
from kubealign_services.roles.driver.rollouts.group_tracker import RolloutGroup
from kubealign_services.roles.driver.rollouts.prompt_source import EpochPrompts
from kubealign_services.roles.driver.sources.iterative.llm_judge import JUDGE_PURPOSE, PolicyJudge
from kubealign_services.roles.driver.sources.iterative.round_files import (
    DataPosition,
    RoundFiles,
    RoundHeader,
    StoredRound,
)
from kubealign_services.roles.driver.state import JobState
from kubealign_services.roles.driver.trainer_client import TrainerClient
from kubealign_services.roles.driver.validation.samples import ValidationSample, collect_validation_samples
from kubealign_services.scoring.combination import Moments, combine_rewards


@dataclass(frozen=True)
class RoundPlan:
    """Parameters of a round.

    Args:
        unit: Sequences per row.
        sequences_per_pass: Sequences of one request for log-probabilities.
    """

    groups: GroupPlan
    rewards: Sequence[Reward]
    unit: int
    sequences_per_pass: int
    dropped_rows: int


@dataclass
class RoundSamples:
    """Samples of a round. rewards: by sample id; None where no reward applies."""

    groups: list[RolloutGroup]
    prompts: EpochPrompts
    failed_prompts: list[str]
    moments: dict[str, Moments]
    rewards: dict[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True)
class RoundContext:
    """Files and processes that rounds use.

    Args:
        publish: Publishes a weight version to the rollout workers and returns its digest.
    """

    files: RoundFiles
    collector: RolloutCollector
    trainer: TrainerClient
    publish: Callable[[int], Awaitable[str]]
    logprob_gap_gate: LogprobGapGate


class RoundMaker:
    """Generates rounds, or loads those that exist.

    Args:
        open_prompts: Returns the prompts from the state's data position on.
        show: Receives the samples for displays.
    """

    def __init__(
        self,
        plan: RoundPlan,
        algorithm: RoundAlgorithm,
        context: RoundContext,
        open_prompts: Callable[[JobState], EpochPrompts],
        judge: PolicyJudge | None,
        show: Callable[[StepRecord, Sequence[ValidationSample], int], None],
    ) -> None:
        self._plan = plan
        self._algorithm = algorithm
        self._context = context
        self._open_prompts = open_prompts
        self._judge = judge
        self._show = show

    async def make_round(self, number: int, state: JobState, step: StepRecord) -> StoredRound | RoundRows:
        """Return the round of this number, generated from the state's weights and data position.

        Returns RoundRows if the round has no row. Raises UnrecoverableError, ShutdownRequested,
        RefitFailed.
        """
        with step.phase("refit"):
            weights = await self._context.publish(state.version)
        begins = DataPosition(cursor=state.cursor, unfinished=state.unfinished)
        stored = await asyncio.to_thread(self._context.files.find, number, weights, begins)
        if stored is not None:
            return stored
        sampling = await self._sample(number, state, step)
        rows = {group.group_id: sampling.prompts.row(group.group_id) for group in sampling.groups}
        await self._judge_samples(sampling, rows, state.version, step)
        self._show(step, self._preview_samples(sampling), state.version)
        round_rows = self._algorithm.rows(
            [to_algorithm_prompt(group, rows[group.group_id], sampling.rewards) for group in sampling.groups]
        )
        step.add(round_rows.metrics)
        if not round_rows.rows:
            return round_rows
        batch = pack_rows(round_rows.rows)
        await self._add_reference_logprobs(batch, step)
        header = RoundHeader(
            round=number,
            fence=self._context.collector.fence,
            version=state.version,
            weights=weights,
            begins=begins,
            ends=DataPosition(cursor=sampling.prompts.cursor, unfinished=sampling.prompts.unfinished),
            prompts=[group.group_id for group in sampling.groups],
            given_up=sampling.failed_prompts,
            rewards=sampling.moments,
            figures=round_rows.metrics,
            unit=self._plan.unit,
        )
        return await asyncio.to_thread(self._context.files.write, header, batch)

    async def _sample(self, number: int, state: JobState, step: StepRecord) -> RoundSamples:
        """Sample the responses and compute their rewards."""
        supply, plan = self._open_prompts(state), self._plan
        requested_at = time.monotonic()
        names = tuple(reward.name for reward in plan.rewards)
        options = GroupBufferOptions(
            failure_count=len(state.given_up),
            group_sources={reward.name for reward in plan.rewards if reward.scores_groups},
        )
        buffer = GroupBuffer(self._context.collector, supply, plan.groups, "train", names, options)
        try:
            groups = await buffer.take_batch(state.version)
        finally:
            buffer.close()
        generated = max(requested_at, *(group.generated_at or requested_at for group in groups))
        step.add_phase("generate", requested_at, generated)
        step.add_phase("score", generated, time.monotonic())
        sampling = plan.groups.sampling
        batch = assemble_batch(
            groups,
            names,
            SamplingInfo(sampling.temperature, sampling.max_tokens),
            state.version,
            reference=None,
        )
        step.add(response_metrics(batch, state.version))
        step.add(data_metrics(supply, plan.dropped_rows, [group.group_id for group in groups]))
        await self._check_logprob_gap(batch, step)
        # The state stays unchanged until a step of the round is done.
        samples = RoundSamples(groups, supply, list(buffer.failed_prompts), copy.deepcopy(state.rewards))
        if plan.rewards:
            step.add(combine_rewards(batch, plan.rewards, number, samples.moments))
            step.add(source_reward_metrics(batch, supply))
            samples.rewards = dict(zip(batch.sample_ids, read_sums(batch), strict=True))
        return samples

    async def _check_logprob_gap(self, batch: Batch, step: StepRecord) -> None:
        """Check that engine and trainer agree on the log-probabilities of some samples."""
        subset = batch.select(range(min(len(batch), self._plan.sequences_per_pass)))
        subset.token_columns["old_logprobs"] = await self._context.trainer.logprobs(subset)
        self._context.logprob_gap_gate.check(subset, step)

    def _preview_samples(self, sampling: RoundSamples) -> list[ValidationSample]:
        """Return the samples with their scores from the rewards or the judge."""
        samples = collect_validation_samples(sampling.groups, [reward.name for reward in self._plan.rewards])
        if self._judge is None:
            return samples
        given = sampling.rewards.values()
        return [
            replace(sample, scores={} if score is None else {JUDGE_PURPOSE: score})
            for sample, score in zip(samples, given, strict=True)
        ]

    async def _judge_samples(
        self, sampling: RoundSamples, rows: Mapping[str, PreparedRow], version: int, step: StepRecord
    ) -> None:
        """Replace the rewards by the judge's scores, if a judge exists."""
        if self._judge is None:
            return
        with step.phase("judge"):
            sampling.rewards, metrics = await self._judge(sampling.groups, rows, version)
        step.add(metrics)

    async def _add_reference_logprobs(self, batch: Batch, step: StepRecord) -> None:
        """Add reference log-probabilities if needed.

        The trainer still has the round's initial weights, so it is the reference.
        """
        if not self._algorithm.needs_reference:
            return
        with step.phase("reference"):
            size = self._plan.sequences_per_pass
            passes = [range(first, min(first + size, len(batch))) for first in range(0, len(batch), size)]
            parts = [await self._context.trainer.logprobs(batch.select(part)) for part in passes]
        batch.token_columns["reference_logprobs"] = torch.cat(parts)
