"""The operator process: HTTP endpoints, leader election, and the manager that runs while leading."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager

from kubernetes.aio.client.api_client import ApiClient

from kubealign_operator.controller.api import anybody
from kubealign_operator.controller.assembly import Assembly
from kubealign_operator.controller.config import OperatorConfig
from kubealign_operator.controller.connection import connect, identity, own_namespace
from kubealign_operator.controller.lease import Lease
from kubealign_operator.controller.metrics import Metrics
from kubealign_operator.controller.pages import Pages

log = logging.getLogger(__name__)


class Operator:
    """One replica of the operator."""

    def __init__(self, config: OperatorConfig) -> None:
        self._config = config
        self._metrics = Metrics()
        self._identity = identity()
        self._missing: str | None = "not connected yet"

    async def run(self) -> None:
        """Run until cancelled, which releases the lease.

        Raises:
            ConfigError: The configuration cannot be used.
            AddressError: An address cannot be listened on.
            ExceptionGroup: With LeaseLost, NotLeader or SyncTimeout when the replica must stop.
        """
        config = self._config
        endpoints = Pages(self._metrics, config.metrics_address, config.health_address, lambda: self._missing)
        async with endpoints, await connect(config) as client, self._leading(client) as (guard, lost):
            await self._work(client, guard, lost)

    @asynccontextmanager
    async def _leading(self, client: ApiClient) -> AsyncIterator[tuple[Callable[[], None], Lease | None]]:
        # A standby replica reports ready: a rollout of the Deployment waits for it.
        self._missing = None
        election = self._config.leader_election
        if election is None:
            self._metrics.leads(True)
            yield anybody, None
            return
        lease = Lease(client, election, own_namespace(self._config), self._identity)
        try:
            log.info("waiting for the lease", extra={"identity": self._identity})
            await lease.acquire()
            log.info("leading", extra={"identity": self._identity})
            self._metrics.leads(True)
            yield lease.held, lease
        finally:
            self._metrics.leads(False)
            await lease.give_back()

    async def _work(self, client: ApiClient, guard: Callable[[], None], lease: Lease | None) -> None:
        manager = Assembly(self._config, client, self._metrics, self._identity, guard)
        async with aclosing(manager), asyncio.TaskGroup() as tasks:
            if lease is not None:
                tasks.create_task(lease.lost())
            for coroutine in manager.watching():
                tasks.create_task(coroutine)
            self._missing = "waiting for the first lists of jobs and pods"
            await manager.synced()
            self._missing = None
            for coroutine in manager.working():
                tasks.create_task(coroutine)
