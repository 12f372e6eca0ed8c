"""Buffer of prompt groups, requested ahead of time and taken in batches.

Unfinished and waiting groups never exceed (max_staleness + 1) x prompts_per_step (AReaL, Fu et al. 2025,
section 5.1), and batches are taken in the order of the requests: a step waits for its oldest groups,
however many later ones are complete. The age of a sample is therefore bounded by construction, however
slow the sample is and however many weight versions appear meanwhile. A group requested at version v has
fewer than the capacity ahead of it, every step takes prompts_per_step of those, and so the group is
trained on at version v + max_staleness at the latest; none of its tokens is older than v, which its work
item demands. No group is discarded for its age, long responses are not lost more often than short ones,
and a batch holds the same prompts whatever the workers' speed. The age is still checked when a batch is
taken. With max_staleness 0 every sample is generated with the weights that train on it.

Rounds, validation and data generation take large batches with max_staleness 0. Their plan has a window: only
so many groups are incomplete at a time as the workers can hold and the bus can store, and each group that
finishes makes room for the next prompt. An overdue group has failed only if no other group has finished for
the time of the deadline. A work item that expires before that is published again, as the same attempt with
the same seeds.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from kubealign.v1 import rollout_pb2
from kubealign_services.roles.driver.errors import UnrecoverableError
from kubealign_services.roles.driver.rollouts.batch_assembly import find_oldest_version
from kubealign_services.roles.driver.rollouts.batch_scoring import BatchScoring
from kubealign_services.roles.driver.rollouts.collector import RolloutCollector, create_group
from kubealign_services.roles.driver.rollouts.dynamic_sampling import DynamicSamplingFilter
from kubealign_services.roles.driver.rollouts.group_scoring import GroupScoring
from kubealign_services.roles.driver.rollouts.group_tracker import GroupFailure, GroupTracker, RolloutGroup
from kubealign_services.roles.driver.rollouts.prompt_source import PromptSource
from kubealign_services.roles.driver.rollouts.work_items import derive_sample_seed, encode_scoring_context
from kubealign_services.runtime.process.bus_load import WINDOW_LOADS, RequestWindow

log = logging.getLogger(__name__)

#: Called with the groups of the next batch whose samples have arrived, and the number of missing groups.
OnGenerated = Callable[[Sequence[RolloutGroup], int], None]


@dataclass(frozen=True)
class GroupPlan:
    """Parameters of the requests for groups."""

    job_seed: int
    prompts_per_step: int
    samples_per_prompt: int
    sampling: rollout_pb2.Sampling
    group_timeout: float
    group_retries: int
    max_failed_groups: int
    max_staleness: int = 0
    #: Additional greedy samples of each prompt, after the others.
    greedy_samples: int = 0
    #: Additional samples of the reference for each prompt, after all others.
    reference_samples: int = 0
    #: Limit of the incomplete groups; None: all groups up to the capacity are requested at once.
    window: RequestWindow | None = None

    @property
    def total_samples(self) -> int:
        """Samples per prompt, additional ones included."""
        return self.samples_per_prompt + self.auxiliary_samples

    @property
    def auxiliary_samples(self) -> int:
        """Additional samples per prompt, the last ones."""
        return self.greedy_samples + self.reference_samples

    @property
    def item_lifetime(self) -> float:
        """Seconds after which workers skip a work item.

        In a window, a group waits for the loads before its own, each of which takes less than the timeout.
        """
        return self.group_timeout * (1 if self.window is None else WINDOW_LOADS)

    @property
    def capacity(self) -> int:
        """Maximum number of requested groups, complete or not."""
        return (self.max_staleness + 1) * self.prompts_per_step

    @property
    def max_incomplete(self) -> int:
        """Maximum number of requested groups that are incomplete."""
        if self.window is None:
            return self.capacity
        return min(self.capacity, self.window.groups(self.total_samples))


@dataclass(frozen=True)
class GroupBufferOptions:
    """Options of a group buffer.

    Args:
        failure_count: Prompts that failed earlier in the job.
        continuations: Prompt -> tokens of responses that are not sampled but scored for their
            log-probability.
        on_drop: Called with each group that dynamic sampling drops.
        batch_scoring: Requests the scores of complete batches; None: scorers score samples as they arrive.
        group_sources: Scorers that score all samples of a prompt at once; those that are no sources of the
            buffer are left out.
    """

    failure_count: int = 0
    dynamic_sampling: DynamicSamplingFilter | None = None
    continuations: Mapping[str, Sequence[Sequence[int]]] = field(default_factory=dict)
    on_drop: Callable[[RolloutGroup], None] | None = None
    batch_scoring: BatchScoring | None = None
    group_sources: Container[str] = ()


class GroupBuffer:
    """Publishes prompts, joins rollouts with scores, retries failed groups, drops stale ones and, with
    dynamic sampling, those that give no gradient.

    `failed_prompts` are the prompts that failed after all retries; others have taken their place.
    `failure_count` counts them over the whole job. `discarded_groups` counts the stale groups since this
    buffer was created.
    """

    def __init__(
        self,
        collector: RolloutCollector,
        prompts: PromptSource,
        plan: GroupPlan,
        purpose: str,
        sources: tuple[str, ...],
        options: GroupBufferOptions | None = None,
    ) -> None:
        """Register with the collector."""
        options = options or GroupBufferOptions()
        self._continuations = options.continuations
        self._batch_scoring = options.batch_scoring
        self._dynamic_sampling = options.dynamic_sampling or DynamicSamplingFilter((), 0)
        self._on_drop = options.on_drop
        self._collector = collector
        self._prompts = prompts
        self._plan = plan
        self._purpose = purpose
        self._tracker = GroupTracker(collector.fence, purpose, sources)
        names = [source for source in sources if source in options.group_sources]
        self._sample_sources = tuple(source for source in sources if source not in names)
        self._group_scoring = GroupScoring(collector, names)
        scores_groups = names and self._batch_scoring is None
        on_generated = self._group_scoring.request if scores_groups else None
        collector.register(self._tracker, self._republish_missing, on_generated)
        self.failed_prompts: list[str] = []
        self.failure_count = options.failure_count
        self.discarded_groups = 0
        self._capacity = plan.capacity
        self._max_incomplete = plan.max_incomplete
        self._is_exhausted = False

    @property
    def uninformative_groups(self) -> int:
        """Number of groups dropped for this step because all their rewards are equal."""
        return self._dynamic_sampling.dropped

    @property
    def outstanding_prompts(self) -> list[str]:
        """Prompts requested and not handed out in a batch, oldest first."""
        return list(self._tracker.groups)

    @property
    def groups_in_flight(self) -> int:
        """Number of requested groups that are incomplete."""
        return len(self._tracker.incomplete)

    @property
    def groups_waiting(self) -> int:
        """Number of complete groups that no batch has taken yet."""
        return len(self._tracker.list_complete())

    def close(self) -> None:
        """Abandon outstanding requests: results that still arrive are dropped."""
        self._collector.unregister(self._tracker)

    def describe_missing(self) -> str:
        """Describe in plain English what the incomplete groups lack."""
        return self._tracker.describe_missing()

    async def take_batch(self, version: int, on_generated: OnGenerated | None = None) -> list[RolloutGroup]:
        """Return the oldest prompts_per_step groups once they are complete, none older than max_staleness.

        Returns fewer groups once the prompts have run out, and none when nothing is left.

        Args:
            on_generated: Called with the groups whose samples have arrived, while others are generated or
                scored.

        Raises:
            UnrecoverableError: Too many prompts have failed, or a failure is permanent.
            ShutdownRequested: The driver was asked to stop.
        """
        self._dynamic_sampling.reset()
        while True:
            await self._request_new_groups(version)
            if self._drop_uninformative():
                continue  # other prompts replace them
            # Groups that finished while others were published have made room.
            has_room = self._has_room()
            if self._batch_scoring is not None and not has_room:
                for group in await self._batch_scoring.request_due(self._list_oldest()):
                    group.deadline = time.monotonic() + self._plan.group_timeout
            if not has_room and self._is_batch_complete():
                oldest = self._list_oldest()
                stale = [group for group in oldest if self._is_stale(group, version)]
                if not stale:
                    for group in oldest:
                        self._tracker.remove(group.group_id)
                    return oldest
                for group in stale:
                    await self._resample(group, version)
            elif on_generated is not None:
                oldest = self._list_oldest()
                generated = [group for group in oldest if self._is_generated(group)]
                on_generated(generated, len(oldest) - len(generated))
            failed = {
                failure.group_id: failure
                for failure in await self._collector.wait_for_updates(self._tracker, poll=has_room)
            }
            for failure in failed.values():
                await self._handle_failure(failure)

    def _drop_uninformative(self) -> bool:
        """Remove complete groups that give no gradient. Return True if there were any."""
        if self._dynamic_sampling.is_disabled:
            return False
        uninformative = [
            group for group in self._tracker.list_complete() if self._dynamic_sampling.should_drop(group)
        ]
        for group in uninformative:
            self._tracker.remove(group.group_id)
            if self._on_drop is not None:
                self._on_drop(group)
        return bool(uninformative)

    def _list_oldest(self) -> list[RolloutGroup]:
        """Return the groups of the next batch, complete or not."""
        return list(islice(self._tracker.groups.values(), self._plan.prompts_per_step))

    def _is_batch_complete(self) -> bool:
        """Return True if all groups of the next batch are complete."""
        if len(self._tracker.groups) <= self._plan.prompts_per_step:
            return not self._tracker.incomplete
        return all(group.completed_at is not None for group in self._list_oldest())

    def _is_generated(self, group: RolloutGroup) -> bool:
        """Return True if all samples have arrived and the batch is certain to contain the group.

        Where groups are dropped for their rewards, only the rewards decide that.
        """
        return (group.generated_at if self._dynamic_sampling.is_disabled else group.completed_at) is not None

    async def _request_new_groups(self, version: int) -> None:
        """Request new groups up to the capacity, and up to the plan's number of incomplete groups."""
        new_groups = []
        while self._has_room():
            group_id = await self._prompts.next_prompt()
            if group_id is None:
                self._is_exhausted = True
                break
            group = create_group(group_id, self._plan.total_samples, version, self._plan.group_timeout)
            self._tracker.add(group)
            new_groups.append(group)
        await asyncio.gather(*(self._publish(group) for group in new_groups))

    def _has_room(self) -> bool:
        """Return True if another prompt can be requested."""
        return (
            not self._is_exhausted
            and len(self._tracker.groups) < self._capacity
            and len(self._tracker.incomplete) < self._max_incomplete
        )

    async def _republish_missing(self) -> None:
        """Publish again what unfinished groups lack, on a bus that has lost its data.

        The attempt number stays, so results that workers still hold count when they arrive.
        """
        for group in self._tracker.list_incomplete():
            await self._republish(group)

    async def _republish(self, group: RolloutGroup) -> None:
        """Publish again what an unfinished group lacks, with a new deadline."""
        group.deadline = time.monotonic() + self._plan.group_timeout
        if self._batch_scoring is not None:
            await self._batch_scoring.republish(group)
        else:
            for rollout in group.list_unscored(self._sample_sources):
                await self._collector.request_scores(rollout, group.renewals)
            await self._group_scoring.request(group)
        if len(group.rollouts) < group.samples:
            await self._publish(group)

    async def _publish(self, group: RolloutGroup) -> None:
        """Publish the work item of a group."""
        row = self._prompts.row(group.group_id)
        lifetime = self._plan.item_lifetime
        group.item_deadline = time.monotonic() + lifetime
        await self._collector.submit(
            rollout_pb2.WorkItem(
                group_id=group.group_id,
                attempt=group.attempt,
                prompt_tokens=row.prompt_tokens,
                samples=group.samples,
                seeds=[
                    derive_sample_seed(
                        self._plan.job_seed, self._purpose, group.group_id, group.attempt, sample
                    )
                    for sample in range(group.samples)
                ],
                min_version=group.min_version,
                sampling=self._plan.sampling,
                greedy_samples=self._plan.greedy_samples,
                reference_samples=self._plan.reference_samples,
                continuations=[
                    rollout_pb2.Continuation(tokens=tokens)
                    for tokens in self._continuations.get(group.group_id, ())
                ],
                columns=encode_scoring_context(row.prompt_text, row.columns),
                deadline=time.time() + lifetime,
                remaining_seconds=lifetime,
                purpose=self._purpose,
            ),
            group.renewals,
        )

    def _is_stale(self, group: RolloutGroup, version: int) -> bool:
        return version - find_oldest_version(group) > self._plan.max_staleness

    async def _resample(self, group: RolloutGroup, version: int) -> None:
        """Discard the results of a stale group and request it again with the current weights."""
        self.discarded_groups += 1
        self._tracker.groups[group.group_id].min_version = version
        await self._publish(
            self._tracker.reset_for_retry(group.group_id, time.monotonic() + self._plan.group_timeout)
        )

    def _is_queued(self, group: RolloutGroup) -> bool:
        """Return True if an overdue group may have waited for its turn.

        That is so in a window, if another group was completed since the time that its deadline counts from.
        """
        last = self._tracker.last_completed_at
        counted_from = group.deadline - self._plan.group_timeout
        return self._plan.window is not None and last is not None and last > counted_from

    async def _extend_deadline(self, group: RolloutGroup) -> None:
        """Count the deadline from the last completed group, and publish an expired work item again."""
        last = self._tracker.last_completed_at
        assert last is not None
        if time.monotonic() < group.item_deadline:
            group.deadline = last + self._plan.group_timeout
            return
        log.info("publishing an expired work item again", extra={"group": group.group_id})
        group.renewals += 1
        await self._republish(group)

    async def _handle_failure(self, failure: GroupFailure) -> None:
        """Retry a failed group, or give its prompt up after the last retry."""
        group = self._tracker.groups.get(failure.group_id)
        if group is None:
            return
        if failure.overdue and self._batch_scoring is not None and self._batch_scoring.is_waiting(group):
            # Its scores are requested once the other groups of the batch are generated.
            group.deadline = time.monotonic() + self._plan.group_timeout
            return
        if failure.overdue and self._is_queued(group):
            await self._extend_deadline(group)
            return
        log.warning(
            "a group failed",
            extra={"group": failure.group_id, "attempt": group.attempt, "cause": failure.cause},
        )
        if group.attempt < self._plan.group_retries:
            await self._publish(
                self._tracker.reset_for_retry(failure.group_id, time.monotonic() + self._plan.group_timeout)
            )
            return
        self._tracker.remove(failure.group_id)
        self.failed_prompts.append(failure.group_id)
        self.failure_count += 1
        if self.failure_count > self._plan.max_failed_groups:
            raise UnrecoverableError(
                f"{self.failure_count} prompts were given up after {group.attempt + 1} tries each, more than "
                f"lifecycle.maxFailedGroups ({self._plan.max_failed_groups}) allows; "
                f"the last one ({failure.group_id}): {failure.cause}"
            )
