"""Judgements in progress: work items for the rollout workers, each with one response that a caller awaits."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

import xxhash

from kubealign.v1 import rollout_pb2
from kubealign_services.data.prepared import PreparedRow
from kubealign_services.roles.driver.rollouts.collector import RolloutCollector, create_group
from kubealign_services.roles.driver.rollouts.group_tracker import GroupFailure, GroupTracker, RolloutGroup
from kubealign_services.roles.driver.rollouts.work_items import derive_sample_seed, encode_scoring_context
from kubealign_services.scoring.functions.errors import RewardHung, RewardRaised


@dataclass(frozen=True)
class JudgementPlan:
    """Parameters of the judgements of one reward.

    timeout: seconds from the publication of a work item to its response.
    """

    job_seed: int
    purpose: str
    sampling: rollout_pb2.Sampling
    timeout: float


class JudgementTracker(GroupTracker):
    """Groups of one sample; the callback receives each group that has its sample, or its failure."""

    def __init__(
        self, fence: int, purpose: str, on_end: Callable[[str, RolloutGroup | GroupFailure], None]
    ) -> None:
        super().__init__(fence, purpose, ())
        self._on_end = on_end

    def add_rollout(self, rollout: rollout_pb2.Rollout, now: float) -> GroupFailure | None:
        """Add a rollout. A failure is the caller's, and not the collector's: always return None."""
        failure = super().add_rollout(rollout, now)
        group = self.groups.get(rollout.group_id)
        if failure is not None:
            self._on_end(rollout.group_id, failure)
        elif group is not None and group.completed_at is not None:
            self._on_end(rollout.group_id, group)
        return None


class Judgements:
    """Requests judgements with the weights of a version or later ones.

    A work item whose rollout worker ends is delivered to another one by the bus; on a bus that has lost its
    data all outstanding work items are published again.
    """

    def __init__(self, collector: RolloutCollector, plan: JudgementPlan) -> None:
        """Register with the collector."""
        self._collector = collector
        self._plan = plan
        self._ends: dict[str, asyncio.Future[RolloutGroup | GroupFailure]] = {}
        self._items: dict[str, rollout_pb2.WorkItem] = {}
        self._count = 0
        self._tracker = JudgementTracker(collector.fence, plan.purpose, self._end)
        collector.register(self._tracker, self._republish)

    def close(self) -> None:
        """Abandon outstanding requests."""
        self._collector.unregister(self._tracker)

    async def request(self, row: PreparedRow, version: int, attempt: int) -> rollout_pb2.Rollout:
        """Return the response to a prompt. Equal arguments give equal seeds.

        Args:
            version: Least version of the weights.
            attempt: Number of earlier responses to the same prompt that could not be used.

        Raises:
            RewardHung: No response came before the timeout.
            RewardRaised: The rollout worker failed, or the response did not end within maxTokens.
        """
        plan = self._plan
        name = f"{plan.purpose}/{self._count}"
        self._count += 1
        content = xxhash.xxh3_64_hexdigest(row.prompt_text.encode())
        item = rollout_pb2.WorkItem(
            group_id=name,
            prompt_tokens=row.prompt_tokens,
            samples=1,
            seeds=[derive_sample_seed(plan.job_seed, plan.purpose, content, attempt, 0)],
            min_version=version,
            sampling=plan.sampling,
            columns=encode_scoring_context(row.prompt_text, {}),
            deadline=time.time() + plan.timeout,
            remaining_seconds=plan.timeout,
            purpose=plan.purpose,
        )
        self._items[name] = item
        self._ends[name] = asyncio.get_running_loop().create_future()
        self._tracker.add(create_group(name, 1, version, plan.timeout))
        try:
            async with asyncio.timeout(plan.timeout):
                await self._collector.submit(item)
                end = await self._ends[name]
        except TimeoutError as error:
            raise RewardHung(
                f"no judgement came from the rollout workers within {plan.timeout:g} s (timeoutSeconds)"
            ) from error
        finally:
            self._tracker.remove(name)
            del self._ends[name], self._items[name]
        if isinstance(end, GroupFailure):
            raise RewardRaised(end.cause)
        return end.rollouts[0]

    def _end(self, name: str, end: RolloutGroup | GroupFailure) -> None:
        if not self._ends[name].done():
            self._ends[name].set_result(end)

    async def _republish(self) -> None:
        for group in self._tracker.list_incomplete():
            group.renewals += 1
            await self._collector.submit(self._items[group.group_id], group.renewals)
