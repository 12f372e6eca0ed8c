"""Driver's client of the message bus: publishes work items and collects rollouts and scores."""

import asyncio
import contextvars
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from types import TracebackType
from typing import Any

from kubealign.v1 import rollout_pb2, scoring_pb2
from kubealign_services.messaging.contract import Bus
from kubealign_services.messaging.fenced_receiver import pull_for_fence
from kubealign_services.roles.driver.errors import ShutdownRequested, UnrecoverableError
from kubealign_services.roles.driver.rollouts.group_tracker import (
    GroupFailure,
    GroupTracker,
    RolloutGroup,
    describe_discards,
)
from kubealign_services.telemetry.message_tracing import trace_headers

_SUBJECTS = ("work", "rollouts", "scores")
_PULL_COUNT = 64
_PULL_SECONDS = 5.0
_DECODERS: dict[str, Callable[[bytes], rollout_pb2.Rollout | scoring_pb2.Score]] = {
    "rollouts": rollout_pb2.Rollout.FromString,
    "scores": scoring_pb2.Score.FromString,
}
#: Called with a group whose last sample has arrived.
OnGroupGenerated = Callable[[RolloutGroup], Coroutine[Any, Any, None]]
#: Called with a rollout that has arrived, and the version of the weights that was demanded for it.
RequestScore = Callable[[rollout_pb2.Rollout, int], None]

log = logging.getLogger(__name__)


class RolloutCollector:
    """Publishes requests and dispatches results to group trackers while the context is open.

    One collector exists per fence. At the start it purges the requests of older fences from the bus. Two
    drivers share the consumers of the bus: a collector that receives a message of a higher fence returns it
    and receives no more.

    Raises:
        ShutdownRequested: From `wait_for_updates`, when `stop` is set.
        UnrecoverableError: From `wait_for_updates`, for a permanent failure. Errors of the receiving tasks
            are raised there too.
        StaleFence: From `wait_for_updates`, when another driver has taken over.
    """

    def __init__(
        self, bus: Bus, fence: int, stop: asyncio.Event, report_wait: Callable[[Callable[[], str]], None]
    ) -> None:
        self.fence = fence
        self._bus = bus
        self._stop = stop
        self._report_wait = report_wait
        # Tracker -> function that publishes what its groups lack on an empty bus.
        self._trackers: dict[GroupTracker, Callable[[], Coroutine[Any, Any, None]]] = {}
        self._on_generated: dict[GroupTracker, OnGroupGenerated] = {}
        # Context of the latest request, which names its trace.
        self._request_context = contextvars.Context()
        # Source -> request for the score of a rollout and the version of the weights demanded for it.
        self._scorers: dict[str, RequestScore] = {}
        self._failures: list[GroupFailure] = []
        self._update_event = asyncio.Event()
        self._receivers: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> "RolloutCollector":
        for subject in _SUBJECTS:
            await self._bus.purge(subject)
        # The receiver of the rollouts detects the loss of data.
        losses = self._bus.watch_data_loss("rollouts")
        coroutines = (
            self._receive("rollouts"),
            self._receive("scores"),
            self._republish_after_loss(losses),
            *(self._report_discards(subject) for subject in _SUBJECTS),
        )
        self._receivers = [asyncio.create_task(coroutine) for coroutine in coroutines]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for pump in self._receivers:
            pump.cancel()
        await asyncio.gather(*self._receivers, return_exceptions=True)

    def register(
        self,
        tracker: GroupTracker,
        republish: Callable[[], Coroutine[Any, Any, None]],
        on_generated: OnGroupGenerated | None = None,
    ) -> None:
        """Deliver results to this tracker from now on.

        Args:
            republish: Called when the bus has lost its data; publishes again what the tracker's groups
                lack.
            on_generated: Called with each group whose last sample has arrived.
        """
        self._trackers[tracker] = republish
        if on_generated is not None:
            self._on_generated[tracker] = on_generated

    def unregister(self, tracker: GroupTracker) -> None:
        """Stop delivering results to this tracker."""
        del self._trackers[tracker]
        self._on_generated.pop(tracker, None)

    def add_scorer(self, source: str, request: RequestScore) -> None:
        """Request the scores of a source here, and not by the bus: its scorer calls `deliver`."""
        self._scorers[source] = request

    def deliver(self, score: scoring_pb2.Score) -> None:
        """Add a score of this process to the trackers of its group."""
        self._dispatch(score)
        self._update_event.set()

    def count_outstanding(self) -> dict[str, int]:
        """Count open requests: groups_in_flight (incomplete), groups_waiting (complete, not taken),
        samples_in_flight and scores_in_flight (not arrived).
        """
        ledgers = list(self._trackers)
        unfinished = [(ledger, group) for ledger in ledgers for group in ledger.list_incomplete()]
        return {
            "groups_in_flight": len(unfinished),
            "groups_waiting": sum(len(ledger.list_complete()) for ledger in ledgers),
            "samples_in_flight": sum(group.samples - len(group.rollouts) for _, group in unfinished),
            "scores_in_flight": sum(len(group.list_unscored(ledger.sources)) for ledger, group in unfinished),
        }

    async def submit(self, item: rollout_pb2.WorkItem, renewals: int = 0) -> None:
        """Publish a group's work item.

        Args:
            renewals: Number of times that this attempt was published before on the same bus, which drops a
                repeated message id.
        """
        item.fence = self.fence
        message_id = f"{self.fence}:{item.purpose}:{item.group_id}:{item.attempt}"
        if renewals:
            message_id += f":renewal:{renewals}"
        await self._publish("work", item, message_id)

    async def request_scores(self, rollout: rollout_pb2.Rollout, renewals: int = 0) -> None:
        """Publish a rollout that has arrived already once more, for its scorers.

        Args:
            renewals: As in `submit`.
        """
        message_id = (
            f"{self.fence}:{rollout.purpose}:{rollout.group_id}:{rollout.attempt}:{rollout.sample}:again"
        )
        if renewals:
            message_id += f":{renewals}"
        await self._publish("rollouts", rollout, message_id)

    async def wait_for_updates(self, tracker: GroupTracker, poll: bool = False) -> list[GroupFailure]:
        """Wait until a result arrives or a group of this tracker is overdue; return the failed attempts of
        its groups.

        Args:
            poll: Return at once.
        """
        self._report_wait(tracker.describe_missing)
        deadline = tracker.find_next_deadline()
        timeout = None if deadline is None else max(0.0, deadline - time.monotonic())
        timeout = 0.0 if poll else timeout
        update = asyncio.create_task(self._update_event.wait())
        stop = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait(
                [update, stop, *self._receivers], timeout=timeout, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            update.cancel()
            stop.cancel()
        if self._stop.is_set():
            raise ShutdownRequested
        for pump in self._receivers:
            if pump.done():
                pump.result()
        self._update_event.clear()
        failures = [failure for failure in self._failures if tracker.is_current(failure)]
        others = [other for other in self._trackers if other is not tracker]
        self._failures = [
            failure for failure in self._failures if any(other.is_current(failure) for other in others)
        ]
        failures += tracker.list_overdue(time.monotonic())
        for failure in failures:
            if failure.permanent:
                raise UnrecoverableError(failure.cause)
        return failures

    async def _publish(
        self, subject: str, message: rollout_pb2.WorkItem | rollout_pb2.Rollout, message_id: str
    ) -> None:
        """Publish a request as a part of the current trace."""
        self._request_context = contextvars.copy_context()
        await self._bus.publish(subject, message.SerializeToString(), message_id, trace_headers())

    async def _receive(self, subject: str) -> None:
        """Receive messages of a subject and dispatch them, until cancelled."""
        while True:
            messages = await pull_for_fence(
                self._bus,
                subject,
                self.fence,
                _DECODERS[subject],
                lambda message: message.fence,
                count=_PULL_COUNT,
                timeout=_PULL_SECONDS,
            )
            generated: list[Coroutine[Any, Any, None]] = []
            for message, delivery in messages:
                generated += self._dispatch(message)
                await delivery.ack()
                self._update_event.set()
            # A part of the trace of the latest step that has requested work.
            calls = [asyncio.create_task(call, context=self._request_context) for call in generated]
            await asyncio.gather(*calls)

    async def _republish_after_loss(self, losses: AsyncIterator[None]) -> None:
        """Publish missing requests again whenever the bus has lost its data."""
        async for _ in losses:
            log.warning("the message bus has lost its data; outstanding requests are published again")
            for refill in list(self._trackers.values()):
                # A part of the trace of the latest step that has requested work.
                await asyncio.create_task(refill(), context=self._request_context)

    async def _report_discards(self, subject: str) -> None:
        """Log messages that the bus has discarded, and report them to the trackers."""
        async for discarded in self._bus.watch_discards(subject):
            log.warning(
                describe_discards(discarded),
                extra={"subject": subject, "consumer": discarded.consumer, "count": discarded.count},
            )
            for tracker in self._trackers:
                tracker.add_discards(discarded, time.monotonic())

    def _dispatch(self, message: rollout_pb2.Rollout | scoring_pb2.Score) -> list[Coroutine[Any, Any, None]]:
        """Add a message to the trackers of its group; return the calls for groups that it completes."""
        now = time.monotonic()
        calls = []
        for ledger in self._trackers:
            if message.group_id not in ledger.groups:
                continue
            if isinstance(message, rollout_pb2.Rollout):
                group = ledger.groups[message.group_id]
                was_generated = group.generated_at is not None
                failure = ledger.add_rollout(message, now)
                if group.rollouts.get(message.sample) is message:
                    for source in ledger.sources:
                        if source in self._scorers:
                            self._scorers[source](message, group.min_version)
                if group.generated_at is not None and not was_generated and ledger in self._on_generated:
                    calls.append(self._on_generated[ledger](group))
            else:
                failure = ledger.add_score(message, now)
            if failure is not None:
                self._failures.append(failure)
        return calls


def create_group(group_id: str, samples: int, min_version: int, timeout: float) -> RolloutGroup:
    """Create a group that is requested now and due in `timeout` seconds."""
    now = time.monotonic()
    return RolloutGroup(group_id, samples, min_version, deadline=now + timeout, requested_at=now)
