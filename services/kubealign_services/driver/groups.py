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
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from kubealign.v1 import rollout_pb2
from kubealign_services.driver.assembly import oldest_version
from kubealign_services.driver.exchange import Exchange, new_group
from kubealign_services.driver.failures import JobFailed
from kubealign_services.driver.informative import DynamicSampling
from kubealign_services.driver.items import context_json, sample_seed
from kubealign_services.driver.ledger import Failure, Group, Ledger
from kubealign_services.driver.supply import Supply

log = logging.getLogger(__name__)

#: Called with the groups of the next batch whose samples have arrived, and the number of missing groups.
Coming = Callable[[Sequence[Group], int], None]


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

    @property
    def samples(self) -> int:
        """Samples per prompt, greedy ones included."""
        return self.samples_per_prompt + self.greedy_samples


class GroupBuffer:
    """Publishes prompts, joins rollouts with scores, retries failed groups, drops stale ones and, with
    dynamic sampling, those that give no gradient.

    `failed_prompts` are the prompts that failed after all retries; others have taken their place.
    `failure_count` counts them over the whole job. `discarded_groups` counts the stale groups since this
    buffer was created.
    """

    def __init__(
        self,
        exchange: Exchange,
        supply: Supply,
        plan: GroupPlan,
        purpose: str,
        sources: tuple[str, ...],
        failures: int = 0,
        dynamic: DynamicSampling | None = None,
        given: Mapping[str, Sequence[Sequence[int]]] | None = None,
    ) -> None:
        """Register with the collector.

        Args:
            continuations: Prompt -> tokens of responses that are not sampled but scored for their
                log-probability.
        """
        self._given = given or {}
        self._dynamic = dynamic or DynamicSampling((), 0)
        self._exchange = exchange
        self._supply = supply
        self._plan = plan
        self._purpose = purpose
        self._ledger = Ledger(exchange.fence, purpose, sources)
        exchange.register(self._ledger, self._ask_for_the_missing)
        self.given_up: list[str] = []
        self.failures = failures
        self.discarded = 0
        self._capacity = (plan.max_staleness + 1) * plan.prompts_per_step

    @property
    def uninformative(self) -> int:
        """Number of groups dropped for this step because all their rewards are equal."""
        return self._dynamic.dropped

    @property
    def outstanding(self) -> list[str]:
        """Prompts requested and not handed out in a batch, oldest first."""
        return list(self._ledger.groups)

    @property
    def in_flight(self) -> int:
        """Number of requested groups that are incomplete."""
        return len(self._ledger.unfinished())

    @property
    def waiting(self) -> int:
        """Number of complete groups that no batch has taken yet."""
        return len(self._ledger.ready())

    def close(self) -> None:
        """Abandon outstanding requests: results that still arrive are dropped."""
        self._exchange.unregister(self._ledger)

    def waiting_for(self) -> str:
        """Describe in plain English what the incomplete groups lack."""
        return self._ledger.waiting_for()

    async def take(self, version: int, coming: Coming | None = None) -> list[Group]:
        """Return the oldest prompts_per_step groups once they are complete, none older than max_staleness.

        Returns fewer groups once the prompts have run out, and none when nothing is left.

        Args:
            on_generated: Called with the groups whose samples have arrived, while others are generated or
                scored.

        Raises:
            UnrecoverableError: Too many prompts have failed, or a failure is permanent.
            ShutdownRequested: The driver was asked to stop.
        """
        self._dynamic.next_step()
        while True:
            await self._refill(version)
            uninformative = [group for group in self._ledger.ready() if self._dynamic.drops(group)]
            if uninformative:
                for group in uninformative:
                    self._ledger.close(group.group_id)
                continue  # other prompts replace them
            oldest = list(islice(self._ledger.groups.values(), self._plan.prompts_per_step))
            if all(group.completed_at is not None for group in oldest):
                stale = [group for group in oldest if self._is_stale(group, version)]
                if not stale:
                    for group in oldest:
                        self._ledger.close(group.group_id)
                    return oldest
                for group in stale:
                    await self._ask_anew(group, version)
            elif coming is not None:
                generated = [group for group in oldest if self._comes(group)]
                coming(generated, len(oldest) - len(generated))
            failed = {failure.group_id: failure for failure in await self._exchange.wait(self._ledger)}
            for failure in failed.values():
                await self._failed(failure)

    def _comes(self, group: Group) -> bool:
        """Return True if all samples have arrived and the batch is certain to contain the group.

        Where groups are dropped for their rewards, only the rewards decide that.
        """
        return (group.generated_at if self._dynamic.keeps_all else group.completed_at) is not None

    async def _refill(self, version: int) -> None:
        """Request new groups up to the capacity."""
        new_groups = []
        while len(self._ledger.groups) < self._capacity and (group_id := self._supply.next()) is not None:
            group = new_group(group_id, self._plan.samples, version, self._plan.group_timeout)
            self._ledger.open(group)
            new_groups.append(group)
        await asyncio.gather(*(self._publish(group) for group in new_groups))

    async def _ask_for_the_missing(self) -> None:
        """Publish again what unfinished groups lack, on a bus that has lost its data.

        The attempt number stays, so results that workers still hold count when they arrive.
        """
        for group in self._ledger.unfinished():
            group.deadline = time.monotonic() + self._plan.group_timeout
            for rollout in group.unscored(self._ledger.sources):
                await self._exchange.ask_scores(rollout)
            if len(group.rollouts) < group.samples:
                await self._publish(group)

    async def _publish(self, group: Group) -> None:
        """Publish the work item of a group."""
        row = self._supply.row(group.group_id)
        await self._exchange.ask(
            rollout_pb2.WorkItem(
                group_id=group.group_id,
                attempt=group.attempt,
                prompt_tokens=row.prompt_tokens,
                samples=group.samples,
                seeds=[
                    sample_seed(self._plan.job_seed, self._purpose, group.group_id, group.attempt, sample)
                    for sample in range(group.samples)
                ],
                min_version=group.min_version,
                sampling=self._plan.sampling,
                greedy_samples=self._plan.greedy_samples,
                continuations=[
                    rollout_pb2.Continuation(tokens=tokens) for tokens in self._given.get(group.group_id, ())
                ],
                columns=context_json(row.prompt_text, row.columns),
                deadline=time.time() + self._plan.group_timeout,
                purpose=self._purpose,
            )
        )

    def _is_stale(self, group: Group, version: int) -> bool:
        return version - oldest_version(group) > self._plan.max_staleness

    async def _ask_anew(self, group: Group, version: int) -> None:
        """Discard the results of a stale group and request it again with the current weights."""
        self.discarded += 1
        self._ledger.groups[group.group_id].min_version = version
        await self._publish(self._ledger.again(group.group_id, time.monotonic() + self._plan.group_timeout))

    async def _failed(self, failure: Failure) -> None:
        """Retry a failed group, or give its prompt up after the last retry."""
        group = self._ledger.groups.get(failure.group_id)
        if group is None:
            return
        log.warning(
            "a group failed",
            extra={"group": failure.group_id, "attempt": group.attempt, "cause": failure.cause},
        )
        if group.attempt < self._plan.group_retries:
            await self._publish(
                self._ledger.again(failure.group_id, time.monotonic() + self._plan.group_timeout)
            )
            return
        self._ledger.close(failure.group_id)
        self.given_up.append(failure.group_id)
        self.failures += 1
        if self.failures > self._plan.max_failed_groups:
            raise JobFailed(
                f"{self.failures} prompts were given up after {group.attempt + 1} tries each, more than "
                f"lifecycle.maxFailedGroups ({self._plan.max_failed_groups}) allows; "
                f"the last one ({failure.group_id}): {failure.cause}"
            )
