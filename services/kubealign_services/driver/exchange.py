"""Driver's client of the message bus: publishes work items and collects rollouts and scores."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from types import TracebackType

from google.protobuf.message import DecodeError

from kubealign.v1 import rollout_pb2, scoring_pb2
from kubealign_services.bus.contract import Bus
from kubealign_services.driver.failures import JobFailed, Stopping
from kubealign_services.driver.ledger import Failure, Group, Ledger

_PULL = 64
_PULL_SECONDS = 5.0

log = logging.getLogger(__name__)


class Exchange:
    """Publishes requests and dispatches results to group trackers while the context is open.

    One collector exists per fence. At the start it purges the requests of older fences from the bus.

    Raises:
        ShutdownRequested: From `wait_for_updates`, when `stop` is set.
        UnrecoverableError: From `wait_for_updates`, for a permanent failure. Errors of the receiving tasks
            are raised there too.
    """

    def __init__(
        self, bus: Bus, fence: int, stop: asyncio.Event, waits: Callable[[Callable[[], str]], None]
    ) -> None:
        self.fence = fence
        self._bus = bus
        self._stop = stop
        self._waits = waits
        # Tracker -> function that publishes what its groups lack on an empty bus.
        self._ledgers: dict[Ledger, Callable[[], Awaitable[None]]] = {}
        self._failures: list[Failure] = []
        self._news = asyncio.Event()
        self._pumps: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> "Exchange":
        for subject in ("work", "rollouts", "scores"):
            await self._bus.purge(subject)
        # The receiver of the rollouts detects the loss of data.
        losses = self._bus.losses("rollouts")
        coroutines = (self._pump("rollouts"), self._pump("scores"), self._refill(losses))
        self._pumps = [asyncio.create_task(coroutine) for coroutine in coroutines]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for pump in self._pumps:
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)

    def register(self, ledger: Ledger, refill: Callable[[], Awaitable[None]]) -> None:
        """Deliver results to this tracker from now on.

        Args:
            republish: Called when the bus has lost its data; publishes again what the tracker's groups
                lack.
        """
        self._ledgers[ledger] = refill

    def unregister(self, ledger: Ledger) -> None:
        """Stop delivering results to this tracker."""
        del self._ledgers[ledger]

    def outstanding(self) -> dict[str, int]:
        """Count open requests: groups_in_flight (incomplete), groups_waiting (complete, not taken),
        samples_in_flight and scores_in_flight (not arrived).
        """
        ledgers = list(self._ledgers)
        unfinished = [(ledger, group) for ledger in ledgers for group in ledger.unfinished()]
        return {
            "groups_in_flight": len(unfinished),
            "groups_waiting": sum(len(ledger.ready()) for ledger in ledgers),
            "samples_in_flight": sum(group.samples - len(group.rollouts) for _, group in unfinished),
            "scores_in_flight": sum(len(group.unscored(ledger.sources)) for ledger, group in unfinished),
        }

    async def ask(self, item: rollout_pb2.WorkItem) -> None:
        """Publish a group's work item."""
        item.fence = self.fence
        message_id = f"{self.fence}:{item.purpose}:{item.group_id}:{item.attempt}"
        await self._bus.publish("work", item.SerializeToString(), message_id)

    async def ask_scores(self, rollout: rollout_pb2.Rollout) -> None:
        """Publish a rollout that has arrived already once more, for its scorers."""
        message_id = (
            f"{self.fence}:{rollout.purpose}:{rollout.group_id}:{rollout.attempt}:{rollout.sample}:again"
        )
        await self._bus.publish("rollouts", rollout.SerializeToString(), message_id)

    async def wait(self, ledger: Ledger) -> list[Failure]:
        """Wait until a result arrives or a group of this tracker is overdue; return the failed attempts of
        its groups.
        """
        self._waits(ledger.waiting_for)
        deadline = ledger.next_deadline()
        timeout = None if deadline is None else max(0.0, deadline - time.monotonic())
        update = asyncio.create_task(self._news.wait())
        stop = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait(
                [update, stop, *self._pumps], timeout=timeout, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            update.cancel()
            stop.cancel()
        if self._stop.is_set():
            raise Stopping
        for pump in self._pumps:
            if pump.done():
                pump.result()
        self._news.clear()
        failures = [failure for failure in self._failures if ledger.concerns(failure)]
        others = [other for other in self._ledgers if other is not ledger]
        self._failures = [
            failure for failure in self._failures if any(other.concerns(failure) for other in others)
        ]
        failures += ledger.overdue(time.monotonic())
        for failure in failures:
            if failure.permanent:
                raise JobFailed(failure.cause)
        return failures

    async def _pump(self, subject: str) -> None:
        """Receive messages of a subject and dispatch them, until cancelled."""
        while True:
            for delivery in await self._bus.pull(subject, "driver", _PULL, _PULL_SECONDS):
                try:
                    self._take_in(subject, delivery.data)
                except DecodeError as error:
                    log.error(
                        "dropped a message that cannot be decoded",
                        extra={"subject": subject, "error": str(error)},
                    )
                await delivery.ack()
                self._news.set()

    async def _refill(self, losses: AsyncIterator[None]) -> None:
        """Publish missing requests again whenever the bus has lost its data."""
        async for _ in losses:
            log.warning("the message bus has lost its data; outstanding requests are published again")
            for refill in list(self._ledgers.values()):
                await refill()

    def _take_in(self, subject: str, data: bytes) -> None:
        """Decode a message and add it to the trackers of its group."""
        now = time.monotonic()
        for ledger in self._ledgers:
            if subject == "rollouts":
                rollout = rollout_pb2.Rollout.FromString(data)
                failure = ledger.add_rollout(rollout, now) if rollout.group_id in ledger.groups else None
            else:
                score = scoring_pb2.Score.FromString(data)
                failure = ledger.add_score(score, now) if score.group_id in ledger.groups else None
            if failure is not None:
                self._failures.append(failure)


def new_group(group_id: str, samples: int, min_version: int, timeout: float) -> Group:
    """Create a group that is requested now and due in `timeout` seconds."""
    now = time.monotonic()
    return Group(group_id, samples, min_version, deadline=now + timeout, asked_at=now)
