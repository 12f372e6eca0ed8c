"""Announcements of environment workers, by which rollout workers find them and learn their load."""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from uuid import uuid4

from kubealign.v1.environment_pb2 import EnvironmentWorkerState
from kubealign_services.messaging.contract import Bus, BusUnavailable
from kubealign_services.messaging.decoding import decode_or_reject

SUBJECT = "environments"
#: Seconds between two announcements of a worker whose load does not change, and at least between any two.
PERIOD_SECONDS, _LEAST_PERIOD_SECONDS = 1.0, 0.1
_PULL_SECONDS = 5.0
_PULL_COUNT = 256

log = logging.getLogger(__name__)


class EnvironmentAnnouncer:
    """Announces an environment worker and its load.

    Args:
        worker: Name of the process.
        address: host:port of its server.
        capacity: Most episodes at once.
        count_sessions: Returns the number of episodes in progress.
    """

    def __init__(
        self, bus: Bus, worker: str, address: str, capacity: int, count_sessions: Callable[[], int]
    ) -> None:
        self._bus = bus
        self._state = EnvironmentWorkerState(
            worker=worker, address=address, incarnation=uuid4().hex, capacity=capacity
        )
        self._count_sessions = count_sessions
        self._has_changed = asyncio.Event()

    def notify(self) -> None:
        """Announce the worker again soon: its load has changed."""
        self._has_changed.set()

    async def run(self) -> None:
        """Announce the worker periodically, and after changes; forever."""
        while True:
            self._has_changed.clear()
            await self._announce()
            await asyncio.sleep(_LEAST_PERIOD_SECONDS)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PERIOD_SECONDS):
                    await self._has_changed.wait()

    async def leave(self) -> None:
        """Announce that the worker accepts no further episodes."""
        self._state.leaving = True
        await self._announce()

    async def _announce(self) -> None:
        state = self._state
        state.sequence += 1
        state.sessions = self._count_sessions()
        message_id = f"{state.worker}-{state.incarnation}-{state.sequence}"
        try:
            await self._bus.publish(SUBJECT, state.SerializeToString(), message_id)
        except BusUnavailable as error:
            # Rollout workers get no work either meanwhile.
            log.warning("the environment worker was not announced", extra={"cause": str(error)})


async def follow_announcements(
    bus: Bus, follower: str, record: Callable[[EnvironmentWorkerState, float], None]
) -> None:
    """Pass every announcement, and its age in seconds, to `record`; forever.

    Args:
        follower: Name of this process: each follower gets all announcements.
    """
    while True:
        for delivery in await bus.pull(SUBJECT, f"{SUBJECT}-{follower}", _PULL_COUNT, _PULL_SECONDS):
            state = await decode_or_reject(delivery, SUBJECT, EnvironmentWorkerState.FromString)
            if state is not None:
                record(state, delivery.age)
                await delivery.ack()
