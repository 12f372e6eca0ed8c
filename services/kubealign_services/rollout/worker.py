"""Pulls work from the bus as long as there is room, and publishes each sample as it finishes.

A work item is acknowledged after its last sample is published: what a worker held when it died goes to
another one.
"""

import asyncio
import logging
import time
from contextlib import aclosing

from kubealign.v1 import rollout_pb2
from kubealign_services.bus.contract import Bus, Delivery
from kubealign_services.bus.keepalive import in_hand
from kubealign_services.generation.contract import EngineLost, Generator, RequestRefused
from kubealign_services.refit.worker import Quarantined
from kubealign_services.rollout.messages import (
    Part,
    failure_of,
    given_rollouts,
    identity_of,
    message_id,
    parts_of,
)
from kubealign_services.rollout.samples import AtOnce, Samples
from kubealign_services.rollout.weights import WorkerWeights
from kubealign_services.rollout.workflow.contract import WorkflowFailed
from kubealign_services.rpc.errors import StaleFence
from kubealign_services.scoring.errors import RewardError

#: Few at a time, so that workers share what there is.
_PULL = 4
_PULL_SECONDS = 5.0
#: What a quarantined worker gives back is not delivered at once: it may come straight back to it.
_GIVE_BACK_SECONDS = 1.0

log = logging.getLogger(__name__)


class RolloutWorker:
    """The elastic side of the rollout role. `capacity` is the number of samples that the engine runs at
    once."""

    def __init__(
        self,
        name: str,
        bus: Bus,
        generator: Generator,
        refit: WorkerWeights,
        capacity: int,
        samples: Samples | None = None,
    ) -> None:
        """samples: what makes them; None: each is generated at once."""
        self._samples = samples or AtOnce(generator, name)
        self._name = name
        self._bus = bus
        self._generator = generator
        self._refit = refit
        self._capacity = capacity
        self._held = 0
        # What is being made of each item in hand.
        self._making: dict[str, asyncio.Future[list[rollout_pb2.Rollout]]] = {}
        self._room = asyncio.Event()
        self._room.set()

    async def run(self) -> None:
        """Work until cancelled; what is in hand then is given back. Raises what a handler could not deal
        with."""
        async with asyncio.TaskGroup() as handlers:
            while True:
                await self._room.wait()
                await self._refit.released()
                for delivery in await self._bus.pull("work", "rollout", _PULL, _PULL_SECONDS):
                    handlers.create_task(self._handle(delivery))

    async def _handle(self, delivery: Delivery) -> None:
        item = rollout_pb2.WorkItem.FromString(delivery.data)
        self._hold(item.samples)
        try:
            async with in_hand([delivery], self._bus.ack_wait):
                await self._serve_once(item)
            await delivery.ack()
        except (Quarantined, EngineLost) as error:
            log.warning("work was given back", extra={"group": item.group_id, "cause": str(error)})
            await delivery.retry(_GIVE_BACK_SECONDS)
        except asyncio.CancelledError:
            await delivery.retry()
            raise
        finally:
            self._hold(-item.samples)

    async def _serve_once(self, item: rollout_pb2.WorkItem) -> None:
        """A copy of what is in hand comes when the bus has lost it: then what is made of the first is
        published again, as the bus may have lost that too."""
        identity = identity_of(item)
        first = self._making.get(identity)
        if first is not None:
            for rollout in await asyncio.shield(first):
                await self._publish(rollout)
            return
        making = self._making[identity] = asyncio.get_running_loop().create_future()
        # Perhaps there is no copy that asks for it.
        making.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            making.set_result(await self._serve(item))
        except Exception as error:
            making.set_exception(error)
            raise
        finally:
            making.cancel()
            del self._making[identity]

    async def _serve(self, item: rollout_pb2.WorkItem) -> list[rollout_pb2.Rollout]:
        """Generate a group, publish its samples and return them. An item that nobody waits for any more is
        passed over."""
        remaining = item.deadline - time.time()
        if remaining <= 0:
            return []
        try:
            await self._refit.wait_for(item.fence, item.min_version, timeout=remaining)
        except (StaleFence, TimeoutError) as error:
            log.info("a work item was passed over", extra={"group": item.group_id, "cause": str(error)})
            return []
        made: list[rollout_pb2.Rollout] = []
        if item.continuations:
            await self._judge(item, made)
            return made
        try:
            async with asyncio.TaskGroup() as parts:
                for part in parts_of(item):
                    parts.create_task(self._generate(item, part, made))
        except* EngineLost as lost:
            # The parts have one engine, and one cause.
            raise EngineLost(str(lost.exceptions[0])) from lost
        return made

    async def _generate(
        self, item: rollout_pb2.WorkItem, part: Part, made: list[rollout_pb2.Rollout]
    ) -> None:
        try:
            async with aclosing(self._samples.make(item, part)) as samples:
                async for rollout in samples:
                    made.append(rollout)
                    await self._publish(rollout)
        except (RequestRefused, WorkflowFailed, RewardError) as error:
            made.append(failure_of(item, str(error), self._name))
            await self._publish(made[-1])

    async def _judge(self, item: rollout_pb2.WorkItem, made: list[rollout_pb2.Rollout]) -> None:
        """Say how likely the responses are that the item gives."""
        given = [list(continuation.tokens) for continuation in item.continuations]
        try:
            logprobs, version = await self._generator.continuation_logprobs(item.prompt_tokens, given)
            made += given_rollouts(item, logprobs, version, self._name)
        except RequestRefused as error:
            made.append(failure_of(item, str(error), self._name))
        for rollout in made:
            await self._publish(rollout)

    async def _publish(self, rollout: rollout_pb2.Rollout) -> None:
        await self._bus.publish("rollouts", rollout.SerializeToString(), message_id(rollout))

    def _hold(self, samples: int) -> None:
        self._held += samples
        if self._held < self._capacity:
            self._room.set()
        else:
            self._room.clear()
