"""Rollout worker loop: pulls work items while it has capacity and publishes each sample as it finishes.

A work item is acknowledged after its last sample is published, so the items of a worker that dies are
delivered to another.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import aclosing

from opentelemetry.trace import Span

from kubealign.v1 import rollout_pb2
from kubealign_services.checkpoints.fence import StaleFence
from kubealign_services.generation.contract import EngineLost, Generator, RequestRefused
from kubealign_services.messaging.ack_keepalive import extend_ack_deadline
from kubealign_services.messaging.contract import Bus, Delivery
from kubealign_services.messaging.decoding import decode_or_reject
from kubealign_services.roles.rollout.generation_span import item_attributes, record_rollouts
from kubealign_services.roles.rollout.messages import (
    GroupPart,
    make_item_key,
    make_message_id,
    split_into_parts,
    to_failed_rollout,
    to_given_rollouts,
)
from kubealign_services.roles.rollout.sample_producers import SampleProducer, SingleTurn
from kubealign_services.roles.rollout.weights import WorkerWeights
from kubealign_services.roles.rollout.workflow.contract import WorkflowFailed
from kubealign_services.scoring.functions.errors import RewardError
from kubealign_services.telemetry.message_tracing import continue_trace, trace_headers, work_span
from kubealign_services.telemetry.span_status import mark_failed
from kubealign_services.weights.receive.refit_worker import Quarantined

#: Few items per pull, so that workers share the work.
_PULL_COUNT = 4
_PULL_SECONDS = 5.0
#: An item that a quarantined worker returns is delivered after a delay, as it may come straight back.
_REDELIVERY_DELAY_SECONDS = 1.0

#: Reasons to skip a work item: its deadline has passed, a newer driver has taken over, the weights that the
#: item needs have not arrived before its deadline.
EXPIRED, STALE, NO_WEIGHTS = "expired", "stale", "no_weights"

log = logging.getLogger(__name__)


class RolloutWorker:
    """Bus worker of the rollout role. `capacity`: samples that the engine runs at once."""

    def __init__(
        self,
        name: str,
        bus: Bus,
        generator: Generator,
        weights: WorkerWeights,
        capacity: int,
        samples: SampleProducer | None = None,
    ) -> None:
        """Set up the worker.

        Args:
            samples: Producer of samples; None: single-turn generation.
        """
        self._samples = samples or SingleTurn(generator, name)
        self._name = name
        self._bus = bus
        self._generator = generator
        self._weights = weights
        self._capacity = capacity
        #: Called with the reason for each item that is acknowledged without samples.
        self.on_skip: Callable[[str], None] = lambda reason: None
        self._samples_in_flight = 0
        # Item key -> future of its samples.
        self._in_progress: dict[str, asyncio.Future[list[rollout_pb2.Rollout]]] = {}
        self._has_capacity = asyncio.Event()
        self._has_capacity.set()

    async def run(self) -> None:
        """Work until cancelled; unfinished items are then returned to the bus.

        Raises errors that a handler could not deal with.
        """
        async with asyncio.TaskGroup() as handlers:
            while True:
                await self._has_capacity.wait()
                await self._weights.wait_until_released()
                for delivery in await self._bus.pull("work", "rollout", _PULL_COUNT, _PULL_SECONDS):
                    handlers.create_task(self._handle(delivery))

    async def _handle(self, delivery: Delivery) -> None:
        """Process one delivery and acknowledge it, or return it to the bus."""
        arrived_at = time.monotonic()
        item = await decode_or_reject(delivery, "work", rollout_pb2.WorkItem.FromString)
        if item is None:
            return
        deadline = arrived_at + _remaining_seconds(item, delivery.age)
        self._reserve(item.samples)
        try:
            async with extend_ack_deadline([delivery], self._bus.ack_wait):
                # Samples are published in this context too.
                with continue_trace(delivery.headers):
                    await self._serve_once(item, deadline)
            await delivery.ack()
        except (Quarantined, EngineLost) as error:
            log.warning("work was given back", extra={"group": item.group_id, "cause": str(error)})
            await delivery.retry(_REDELIVERY_DELAY_SECONDS)
        except asyncio.CancelledError:
            await delivery.retry()
            raise
        finally:
            self._reserve(-item.samples)

    async def _serve_once(self, item: rollout_pb2.WorkItem, deadline: float) -> None:
        """Generate an item once, even if the bus delivers it twice.

        The bus delivers a copy when it has lost the item. The samples of the first delivery are then
        published again, since the bus may have lost them too.
        """
        identity = make_item_key(item)
        first_delivery = self._in_progress.get(identity)
        if first_delivery is not None:
            for rollout in await asyncio.shield(first_delivery):
                await self._publish(rollout)
            return
        future = self._in_progress[identity] = asyncio.get_running_loop().create_future()
        # Retrieve the error, since no second delivery may ever await the future.
        future.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            with work_span("Generate", "work", item_attributes(item)) as span:
                rollouts = await self._serve(item, deadline, span)
                record_rollouts(span, rollouts)
            future.set_result(rollouts)
        except Exception as error:
            future.set_exception(error)
            raise
        finally:
            future.cancel()
            del self._in_progress[identity]

    async def _serve(
        self, item: rollout_pb2.WorkItem, deadline: float, span: Span
    ) -> list[rollout_pb2.Rollout]:
        """Generate a group, publish its samples and return them. Expired and stale items are skipped.

        Args:
            deadline: time.monotonic() from which the item is expired.
            span: Span of the item, which is marked if the item or a part of it is not generated.
        """
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            self._skip(item, EXPIRED, f"its deadline passed {-remaining:.1f} s ago", span)
            return []
        try:
            await self._weights.wait_for_version(item.fence, item.min_version, timeout=remaining)
        except (StaleFence, TimeoutError) as error:
            reason = STALE if isinstance(error, StaleFence) else NO_WEIGHTS
            self._skip(item, reason, str(error), span)
            return []
        span.add_event("weights ready")
        rollouts: list[rollout_pb2.Rollout] = []
        if item.continuations:
            await self._score_continuations(item, rollouts, span)
            return rollouts
        try:
            async with asyncio.TaskGroup() as parts:
                for part in split_into_parts(item):
                    parts.create_task(self._generate(item, part, rollouts, deadline, span))
        except* EngineLost as lost:
            # All parts share one engine, so their errors have one cause.
            raise EngineLost(str(lost.exceptions[0])) from lost
        return rollouts

    async def _generate(
        self,
        item: rollout_pb2.WorkItem,
        part: GroupPart,
        rollouts: list[rollout_pb2.Rollout],
        deadline: float,
        span: Span,
    ) -> None:
        """Generate and publish the samples of one part."""
        try:
            async with aclosing(self._samples.make(item, part, deadline)) as samples:
                async for rollout in samples:
                    rollouts.append(rollout)
                    await self._publish(rollout)
        except (RequestRefused, WorkflowFailed, RewardError) as error:
            mark_failed(span, type(error).__name__)
            rollouts.append(to_failed_rollout(item, str(error), self._name))
            await self._publish(rollouts[-1])

    async def _score_continuations(
        self, item: rollout_pb2.WorkItem, rollouts: list[rollout_pb2.Rollout], span: Span
    ) -> None:
        """Compute and publish the log-probabilities of the responses that the item gives."""
        token_lists = [list(continuation.tokens) for continuation in item.continuations]
        try:
            logprobs, version = await self._generator.continuation_logprobs(item.prompt_tokens, token_lists)
            rollouts += to_given_rollouts(item, logprobs, version, self._name)
        except RequestRefused as error:
            mark_failed(span, type(error).__name__)
            rollouts.append(to_failed_rollout(item, str(error), self._name))
        for rollout in rollouts:
            await self._publish(rollout)

    def _skip(self, item: rollout_pb2.WorkItem, reason: str, cause: str, span: Span) -> None:
        """Count and log an item that is acknowledged without samples."""
        self.on_skip(reason)
        span.set_attribute("kubealign.skipped", reason)
        if reason != STALE:
            mark_failed(span, reason)
        log.log(
            logging.INFO if reason == STALE else logging.WARNING,
            "skipped a work item",
            extra={"group": item.group_id, "reason": reason, "cause": cause},
        )

    async def _publish(self, rollout: rollout_pb2.Rollout) -> None:
        message_id = make_message_id(rollout)
        await self._bus.publish("rollouts", rollout.SerializeToString(), message_id, trace_headers())

    def _reserve(self, samples: int) -> None:
        """Add samples to those in flight and update the capacity event."""
        self._samples_in_flight += samples
        if self._samples_in_flight < self._capacity:
            self._has_capacity.set()
        else:
            self._has_capacity.clear()


def _remaining_seconds(item: rollout_pb2.WorkItem, age: float) -> float:
    """Return the seconds until the deadline of an item.

    Args:
        age: Seconds that the item has been on the bus.
    """
    if item.HasField("remaining_seconds"):
        return item.remaining_seconds - age
    return item.deadline - time.time()
