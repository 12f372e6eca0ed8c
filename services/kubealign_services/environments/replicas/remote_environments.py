"""Environments in environment workers, opened by a rollout worker."""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import grpc.aio

from kubealign.process_settings import Role, TlsFiles
from kubealign.spec.workflows.environments import EnvironmentSpec
from kubealign.v1.environment_pb2 import EnvironmentWorkerState
from kubealign_services.environments.contract import EnvironmentFailed
from kubealign_services.environments.factory import describe_environment
from kubealign_services.environments.replicas.announcements import follow_announcements
from kubealign_services.environments.replicas.directory import EnvironmentReplica, ReplicaDirectory
from kubealign_services.environments.replicas.remote_session import (
    RemoteSession,
    SessionRefused,
    WorkerLost,
)
from kubealign_services.messaging.contract import Bus
from kubealign_services.runtime.process.run_until_stopped import cancel_and_wait
from kubealign_services.runtime.rpc.client import connect

#: Time limit in seconds of the wait for a live environment worker: a lost one is started again meanwhile.
_LIVE_SECONDS = 300.0
#: Workers that may be lost at the reset of one episode: an environment may end each of them.
_ATTEMPTS = 3
#: Announcements expire without an event.
_EXPIRY_CHECK_SECONDS = 1.0

log = logging.getLogger(__name__)


@dataclass
class _Connection:
    """Channel to one start of a worker. It stays open for the episodes of a worker that is leaving."""

    incarnation: str
    channel: grpc.aio.Channel
    sessions: int = 0
    is_retired: bool = False


class RemoteEnvironments:
    """Opens the sessions of episodes, each in the live environment worker with the smallest load.

    Use as an async context manager.

    Args:
        name: Name of this process.
        tls: Certificate of this process.
        live_seconds: Time limit of the wait for a live worker.
    """

    def __init__(
        self,
        spec: EnvironmentSpec,
        bus: Bus,
        name: str,
        tls: TlsFiles,
        live_seconds: float = _LIVE_SECONDS,
    ) -> None:
        self._spec, self._bus, self._name, self._tls = spec, bus, name, tls
        self._live_seconds = live_seconds
        self._directory = ReplicaDirectory()
        self._changes = asyncio.Condition()
        self._connections: dict[str, _Connection] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._following: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        """Follow the announcements of the workers."""
        follow = follow_announcements(self._bus, self._name, self._record)
        self._following = self._spawn(follow)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await cancel_and_wait(set(self._tasks))
        await asyncio.gather(*(connection.channel.close() for connection in self._connections.values()))

    @asynccontextmanager
    async def open(self, seed: int, columns: Mapping[str, Any]) -> AsyncIterator[RemoteSession]:
        """Open a session as soon as a worker has capacity, and close it after the block.

        Raises:
            EnvironmentFailed: The environment cannot be reset, or no worker was live within the time limit.
        """
        lost = 0
        while True:
            replica = await self._choose()
            async with self._connected(replica) as channel:
                worker = f"{replica.name} at {replica.state.address}"
                async with RemoteSession(self._spec, worker, channel) as session:
                    try:
                        await session.reset(seed, columns)
                    except SessionRefused:
                        replica.is_full = True
                        continue
                    except WorkerLost as error:
                        # The seed determines the task: another worker may begin the same episode.
                        replica.is_lost = True
                        lost += 1
                        if lost == _ATTEMPTS:
                            raise
                        log.warning("an environment worker was lost", extra={"cause": str(error)})
                        continue
                    yield session
                    return

    async def _choose(self) -> EnvironmentReplica:
        """Wait for a live worker with capacity. Raises EnvironmentFailed where none is live in time."""
        last_live = time.monotonic()
        assert self._following is not None
        async with self._changes:
            while (replica := self._directory.choose(time.monotonic())) is None:
                if self._following.done():
                    # Its error: without announcements no worker is ever found.
                    self._following.result()
                now = time.monotonic()
                if self._directory.has_live(now):
                    last_live = now
                elif now - last_live >= self._live_seconds:
                    raise EnvironmentFailed(
                        f"{describe_environment(self._spec)}: no environment worker was ready within "
                        f"{self._live_seconds:g} s; {self._directory.describe(now)}"
                    )
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_EXPIRY_CHECK_SECONDS):
                        await self._changes.wait()
        return replica

    def _record(self, state: EnvironmentWorkerState, age: float) -> None:
        now = time.monotonic()
        for expired in self._directory.forget_expired(now):
            self._retire(expired.name)
        if self._directory.add(state, age, now):
            self._spawn(self._notify())

    async def _notify(self) -> None:
        async with self._changes:
            self._changes.notify_all()

    @asynccontextmanager
    async def _connected(self, replica: EnvironmentReplica) -> AsyncIterator[grpc.aio.Channel]:
        """Yield the channel to a worker. One that was started again may have another address."""
        connection = self._connections.get(replica.name)
        if connection is None or connection.incarnation != replica.state.incarnation:
            self._retire(replica.name)
            channel = connect(replica.state.address, self._tls, Role.ENVIRONMENT)
            connection = self._connections[replica.name] = _Connection(replica.state.incarnation, channel)
        connection.sessions += 1
        try:
            yield connection.channel
        finally:
            connection.sessions -= 1
            if connection.is_retired and not connection.sessions:
                self._spawn(connection.channel.close())

    def _retire(self, worker: str) -> None:
        """Close the channel to a worker once its episodes have ended."""
        connection = self._connections.pop(worker, None)
        if connection is not None:
            connection.is_retired = True
            if not connection.sessions:
                self._spawn(connection.channel.close())

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
