"""Groups of prompts, asked for ahead of time and taken in batches.

Unfinished and waiting groups never exceed (max_staleness + 1) x prompts_per_step (AReaL, Fu et al. 2025,
section 5.1), and batches are taken in the order in which they were asked for: a step waits for its oldest
groups, however many later ones are whole. So how old a sample can be is bounded by construction, however slow
it is and however many weights it lives through. A group asked for at version v has fewer than the capacity
before it, every step takes prompts_per_step of those, and so it is trained on at version v + max_staleness at
the latest; none of its tokens is older than v, which its work item demands. Nothing is thrown away for its
age, then, long responses are not lost more often than short ones, and a batch holds the same prompts whatever
the workers' speed. The age is checked all the same when a batch is taken. With max_staleness 0 every sample
is made with the weights that train on it.
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

#: Groups of the next batch whose samples are there, and how many of it are missing.
Coming = Callable[[Sequence[Group], int], None]


@dataclass(frozen=True)
class GroupPlan:
    """How groups are asked for."""

    job_seed: int
    prompts_per_step: int
    samples_per_prompt: int
    sampling: rollout_pb2.Sampling
    group_timeout: float
    group_retries: int
    max_failed_groups: int
    max_staleness: int = 0
    #: Further samples of each prompt, of the likeliest tokens, after the others.
    greedy_samples: int = 0

    @property
    def samples(self) -> int:
        """Of each prompt, all told."""
        return self.samples_per_prompt + self.greedy_samples


class GroupBuffer:
    """Publishes prompts, joins rollouts with scores, asks again for what failed, drops what is stale and,
    with dynamic sampling, what teaches nothing.

    `given_up` are the prompts whose retries ended; others have taken their place. `failures` counts them
    over the whole job. `discarded` counts the groups that were too old, since this began.
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
        """given: prompt -> the tokens of responses to it that are not sampled, but told how likely they
        are."""
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
        """Groups that were dropped for the step because they teach nothing."""
        return self._dynamic.dropped

    @property
    def outstanding(self) -> list[str]:
        """Prompts asked for and not handed out in a batch, oldest first."""
        return list(self._ledger.groups)

    @property
    def in_flight(self) -> int:
        """Groups asked for and not whole yet."""
        return len(self._ledger.unfinished())

    @property
    def waiting(self) -> int:
        """Whole groups that no batch has taken yet."""
        return len(self._ledger.ready())

    def close(self) -> None:
        """Let go of what is outstanding: results that still come in are dropped."""
        self._exchange.unregister(self._ledger)

    def waiting_for(self) -> str:
        return self._ledger.waiting_for()

    async def take(self, version: int, coming: Coming | None = None) -> list[Group]:
        """The groups that were asked for first, prompts_per_step of them, once they are whole, none older
        than max_staleness; fewer once the supply has ended, none when nothing is left. coming: told of those
        whose samples are there, while others are made or they are scored. Raises JobFailed, Stopping."""
        self._dynamic.next_step()
        while True:
            await self._refill(version)
            dull = [group for group in self._ledger.ready() if self._dynamic.drops(group)]
            if dull:
                for group in dull:
                    self._ledger.close(group.group_id)
                continue  # other prompts take their place
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
                there = [group for group in oldest if self._comes(group)]
                coming(there, len(oldest) - len(there))
            failed = {failure.group_id: failure for failure in await self._exchange.wait(self._ledger)}
            for failure in failed.values():
                await self._failed(failure)

    def _comes(self, group: Group) -> bool:
        """Whether its samples are there, and the batch will have them: where groups are dropped for their
        rewards, only these tell."""
        return (group.generated_at if self._dynamic.keeps_all else group.completed_at) is not None

    async def _refill(self, version: int) -> None:
        asked = []
        while len(self._ledger.groups) < self._capacity and (group_id := self._supply.next()) is not None:
            group = new_group(group_id, self._plan.samples, version, self._plan.group_timeout)
            self._ledger.open(group)
            asked.append(group)
        await asyncio.gather(*(self._publish(group) for group in asked))

    async def _ask_for_the_missing(self) -> None:
        """Put all that unfinished groups lack on a bus that has lost it. The attempt stays: what workers
        still hold counts when it comes."""
        for group in self._ledger.unfinished():
            group.deadline = time.monotonic() + self._plan.group_timeout
            for rollout in group.unscored(self._ledger.sources):
                await self._exchange.ask_scores(rollout)
            if len(group.rollouts) < group.samples:
                await self._publish(group)

    async def _publish(self, group: Group) -> None:
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
        """Throw away what came of a group and ask again, with today's weights."""
        self.discarded += 1
        self._ledger.groups[group.group_id].min_version = version
        await self._publish(self._ledger.again(group.group_id, time.monotonic() + self._plan.group_timeout))

    async def _failed(self, failure: Failure) -> None:
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
