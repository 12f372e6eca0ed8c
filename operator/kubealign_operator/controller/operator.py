"""The operator process: HTTP endpoints, leader election, and the manager that runs while leading."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager

from kubealign.kube.api import allow_writes
from kubealign.kube.connections import Connections
from kubealign_operator.controller.config import OperatorConfig
from kubealign_operator.controller.http_endpoints import HttpEndpoints
from kubealign_operator.controller.kube.connection import connect, own_namespace, replica_identity
from kubealign_operator.controller.kube.leader_election import LeaderLease
from kubealign_operator.controller.loop_lag import measure_loop_lag
from kubealign_operator.controller.manager import OperatorManager
from kubealign_operator.controller.metrics import OperatorMetrics

log = logging.getLogger(__name__)


class Operator:
    """One replica of the operator."""

    def __init__(self, config: OperatorConfig) -> None:
        self._config = config
        self._metrics = OperatorMetrics()
        self._identity = replica_identity()
        self._not_ready_reason: str | None = "not connected yet"

    async def run(self) -> None:
        """Run until cancelled, which releases the lease.

        Raises:
            ConfigError: The configuration cannot be used.
            AddressError: An address cannot be listened on.
            ExceptionGroup: With LeaseLost, NotLeader or SyncTimeout when the replica must stop.
        """
        config = self._config
        endpoints = HttpEndpoints(
            self._metrics, config.metrics_address, config.health_address, lambda: self._not_ready_reason
        )
        async with (
            endpoints,
            await connect(config) as connections,
            self._lead(connections) as (guard, lost),
        ):
            await self._run_manager(connections, guard, lost)

    @asynccontextmanager
    async def _lead(
        self, connections: Connections
    ) -> AsyncIterator[tuple[Callable[[], None], LeaderLease | None]]:
        # A standby replica reports ready: a rollout of the Deployment waits for it.
        self._not_ready_reason = None
        election = self._config.leader_election
        if election is None:
            self._metrics.set_leader(True)
            yield allow_writes, None
            return
        lease = LeaderLease(
            connections.authenticated(), election, own_namespace(self._config), self._identity
        )
        try:
            log.info("waiting for the lease", extra={"identity": self._identity})
            await lease.acquire()
            log.info("leading", extra={"identity": self._identity})
            self._metrics.set_leader(True)
            yield lease.ensure_leader, lease
        finally:
            self._metrics.set_leader(False)
            await lease.release()

    async def _run_manager(
        self, connections: Connections, guard: Callable[[], None], lease: LeaderLease | None
    ) -> None:
        manager = OperatorManager(self._config, connections, self._metrics, self._identity, guard)
        async with aclosing(manager), asyncio.TaskGroup() as tasks:
            tasks.create_task(measure_loop_lag(self._metrics))
            if lease is not None:
                tasks.create_task(lease.wait_until_lost())
            for coroutine in manager.watchers():
                tasks.create_task(coroutine)
            self._not_ready_reason = "waiting for the first lists of jobs and pods"
            await manager.wait_for_sync()
            self._not_ready_reason = None
            for coroutine in manager.workers():
                tasks.create_task(coroutine)
