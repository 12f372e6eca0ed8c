"""Sampling of responses to all held-out prompts with the weights of one state."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Container, Sequence
from dataclasses import dataclass, replace

from kubealign.spec.sections.rewards import Reward
from kubealign_services.data.prepared import PreparedRow, row_index
from kubealign_services.roles.driver.errors import UnrecoverableError
from kubealign_services.roles.driver.rollouts.batch_assembly import SamplingInfo, assemble_batch
from kubealign_services.roles.driver.rollouts.collector import RolloutCollector
from kubealign_services.roles.driver.rollouts.group_buffer import GroupBuffer, GroupBufferOptions, GroupPlan
from kubealign_services.roles.driver.rollouts.prompt_source import ListPrompts
from kubealign_services.roles.driver.state import JobState
from kubealign_services.roles.driver.trainer_client import CriticClient, mask_scores, score_sequences
from kubealign_services.roles.driver.validation.samples import ValidationSample, collect_validation_samples
from kubealign_services.roles.driver.validation.saved_groups import SavedGroups
from kubealign_services.scoring.purposes import validation_purpose
from kubealign_services.scoring.row_sources import MissingSource, is_of_source

#: Prompts that are saved at a time.
_SAVED_TOGETHER = 8


@dataclass(frozen=True)
class ValidationScorers:
    """Scorers of the responses.

    Args:
        sources: Scorers on the bus.
        critic_rewards: Rewards scored by the critic.
        group_sources: Scorers that score all samples of a prompt at once.
    """

    sources: tuple[str, ...]
    critic: CriticClient | None
    critic_rewards: Sequence[Reward]
    group_sources: Container[str] = ()


class ValidationSampler:
    """Requests the groups of all rows, as many at a time as the plan's window allows.

    A prompt that fails after all retries is left out.

    Args:
        ensure_published: Waits until the rollout workers have a version.
        set_name: Name of the validation set of the rows; None: they are those of validation.data.
        saved: Saves the samples of each prompt, and has those of an interrupted measurement of the same rows;
            None: they are not saved.
    """

    def __init__(
        self,
        collector: RolloutCollector,
        rows: Sequence[PreparedRow],
        plan: GroupPlan,
        scorers: ValidationScorers,
        ensure_published: Callable[[int], Awaitable[None]],
        set_name: str | None = None,
        saved: SavedGroups | None = None,
    ) -> None:
        self._collector = collector
        self._rows = rows
        self._plan = plan
        self._scorers = scorers
        self._ensure_published = ensure_published
        self._purpose = validation_purpose(set_name)
        self._pass_name = "val" if set_name is None else f"val-{set_name}"
        self._saved = saved

    async def __call__(self, state: JobState) -> list[ValidationSample]:
        """Return one scored sample for each response.

        Raises UnrecoverableError, ShutdownRequested, RefitFailed.
        """
        await self._ensure_published(state.version)
        scorers = self._scorers
        if self._saved is not None:
            return await self._sample_unsaved(self._saved, state)
        supply = ListPrompts(self._rows, f"{self._pass_name}@{state.step}")
        buffer = self._open_buffer(supply, self._plan)
        try:
            groups = await buffer.take_batch(state.version)
        finally:
            buffer.close()
        samples = collect_validation_samples(groups, scorers.sources)
        if scorers.critic is None or not scorers.critic_rewards or not groups:
            return samples
        sampling = self._plan.sampling
        sampling_info = SamplingInfo(sampling.temperature or 1.0, sampling.max_tokens)
        batch = assemble_batch(groups, (), sampling_info, state.version, reference=None)
        scored = {reward.name: _list_scored(samples, reward) for reward in scorers.critic_rewards}
        columns = {
            name: mask_scores(column, scored[name])
            for name, column in (await score_sequences(scorers.critic, batch, scored)).items()
        }
        return [
            replace(sample, scores=sample.scores | {name: column[index] for name, column in columns.items()})
            for index, sample in enumerate(samples)
        ]

    def _open_buffer(self, supply: ListPrompts, plan: GroupPlan) -> GroupBuffer:
        scorers = self._scorers
        options = GroupBufferOptions(group_sources=scorers.group_sources)
        return GroupBuffer(self._collector, supply, plan, self._purpose, scorers.sources, options)

    async def _sample_unsaved(self, saved: SavedGroups, state: JobState) -> list[ValidationSample]:
        """Sample the prompts that are not saved, save them, and return the samples of all prompts."""
        sources = self._scorers.sources
        groups = await asyncio.to_thread(saved.read, state.step)
        supply = UnsavedPrompts(self._rows, f"{self._pass_name}@{state.step}", groups.keys())
        # All prompts are requested within the window, and a few are taken at a time, in order.
        takes = -(-len(self._rows) // _SAVED_TOGETHER)
        plan = replace(self._plan, prompts_per_step=_SAVED_TOGETHER, max_staleness=takes)
        buffer = self._open_buffer(supply, plan)
        try:
            while complete := await buffer.take_batch(state.version):
                samples = {group.group_id: collect_validation_samples([group], sources) for group in complete}
                await asyncio.to_thread(saved.append, state.step, samples)
                groups |= samples
        finally:
            buffer.close()
        return [sample for group_id in sorted(groups, key=row_index) for sample in groups[group_id]]


class UnsavedPrompts(ListPrompts):
    """All rows once, in order, without those whose samples are saved."""

    def __init__(self, rows: Sequence[PreparedRow], prefix: str, saved: Collection[str]) -> None:
        super().__init__(rows, prefix)
        self._saved = frozenset(saved)

    async def next_prompt(self) -> str | None:
        name = await super().next_prompt()
        while name in self._saved:
            name = await super().next_prompt()
        return name


def _list_scored(samples: Sequence[ValidationSample], reward: Reward) -> list[int]:
    """Return the indices of the samples that a reward scores. Raises UnrecoverableError."""
    try:
        return [
            index
            for index, sample in enumerate(samples)
            if reward.sources is None or is_of_source(sample.columns, reward.sources, reward.name)
        ]
    except MissingSource as error:
        raise UnrecoverableError(str(error)) from error
