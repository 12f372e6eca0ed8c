"""Leader election: the client library's election with deadlines and an early release of the lease."""

import asyncio
import logging
import time
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import aiohttp
from kubernetes.aio.client import V1Lease, V1ObjectMeta
from kubernetes.aio.client.api_client import ApiClient
from kubernetes.aio.client.exceptions import ApiException
from kubernetes.aio.leaderelection.electionconfig import Config
from kubernetes.aio.leaderelection.leaderelection import LeaderElection
from kubernetes.aio.leaderelection.resourcelock.leaselock import LeaseLock

from kubealign_operator.controller.config import LeaderElectionConfig

log = logging.getLogger(__name__)


class NotLeader(Exception):
    """The lease may have expired: nothing may be written."""


class LeaseLost(Exception):
    """Another replica may be the leader now: this process must stop."""


class LeaderLease:
    """A candidate for leadership. `ensure_leader` is called before every write."""

    def __init__(
        self, client: ApiClient, config: LeaderElectionConfig, namespace: str, identity: str
    ) -> None:
        self._config = config
        self._lock = _DeadlineLock(config, namespace, identity, client)
        self._elected = asyncio.Event()
        self._election: asyncio.Task[None] | None = None

    @property
    def is_leader(self) -> bool:
        return self._elected.is_set()

    def ensure_leader(self) -> None:
        """Verify that no other replica can have acquired the lease.

        This matters after a pause of the whole process, before any timer in it has fired.

        Raises:
            NotLeader: The last renewal is older than the lease.
        """
        age = time.monotonic() - self._lock.last_renewal
        if age > self._config.lease_seconds:
            raise NotLeader(f"the lease was last renewed {age:.1f} s ago")

    async def acquire(self) -> None:
        """Wait until this replica is the leader."""
        election = LeaderElection(
            Config(
                self._lock,
                self._config.lease_seconds,
                self._config.renew_deadline_seconds,
                self._config.retry_seconds,
                self._on_started_leading,
                self._on_stopped_leading,
            )
        )
        self._election = asyncio.create_task(election.run())
        elected = asyncio.create_task(self._elected.wait())
        try:
            await asyncio.wait([self._election, elected], return_when=asyncio.FIRST_COMPLETED)
        finally:
            elected.cancel()
        if self._election.done():
            self._election.result()

    async def wait_until_lost(self) -> None:
        """Wait until leadership is lost.

        Raises:
            LeaseLost: Always.
        """
        if self._election is not None:
            await asyncio.wait([self._election])
            self._election.result()
        raise LeaseLost("the lease could not be renewed in time")

    async def release(self) -> None:
        """Release the lease so that another replica acquires it at once. Failures are logged."""
        if self._election is not None:
            self._election.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await self._election
        if self.is_leader:
            await self._lock.release()

    async def _on_stopped_leading(self) -> None:
        """Ignore the callback: `wait_until_lost` reports the loss."""

    async def _on_started_leading(self) -> None:
        self._elected.set()
        await asyncio.Event().wait()


class _DeadlineLock(LeaseLock):
    """A lease lock whose calls have deadlines.

    The library's lock waits up to five minutes for an answer, in which another replica gets the lease, and
    a broken connection ends its election. Here both count as failed attempts.
    """

    def __init__(
        self, config: LeaderElectionConfig, namespace: str, identity: str, client: ApiClient
    ) -> None:
        super().__init__(config.lease_name, namespace, identity, client)
        #: Monotonic start time of the last successful renewal.
        self.last_renewal = float("-inf")
        # An attempt is a read and a write: both fit between the renew deadline and the lease's expiry.
        self._timeout_seconds = (config.lease_seconds - config.renew_deadline_seconds) / 2 * 0.9

    async def get(self, name: str, namespace: str) -> Any:
        try:
            async with asyncio.timeout(self._timeout_seconds):
                return await super().get(name, namespace)
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            return False, ApiException(status=0, reason=f"no answer: {error!r}")

    async def create(self, name: str, namespace: str, election_record: Any) -> bool:
        return await self._try(self._create(name, namespace, election_record))

    async def update(self, name: str, namespace: str, updated_record: Any) -> bool:
        return await self._try(super().update(name, namespace, updated_record))

    async def release(self) -> None:
        """Clear the holder of the lease, unless another replica holds it."""
        try:
            async with asyncio.timeout(self._timeout_seconds):
                lease = await self.api_instance.read_namespaced_lease(self.name, self.namespace)
                if lease.spec is None or lease.spec.holder_identity != self.identity:
                    return
                lease.spec.holder_identity = None
                lease.spec.renew_time = datetime.now(UTC)
                await self.api_instance.replace_namespaced_lease(self.name, self.namespace, lease)
        except (ApiException, TimeoutError, aiohttp.ClientError, OSError) as error:
            log.warning("the lease was not released; it will expire: %r", error)
        else:
            log.info("released the lease")

    async def _create(self, name: str, namespace: str, election_record: Any) -> bool:
        # The library's method passes `pretty=True`, which its client rejects.
        lease = V1Lease(metadata=V1ObjectMeta(name=name), spec=self.update_lease(election_record))
        try:
            await self.api_instance.create_namespaced_lease(namespace, lease)
        except ApiException as error:
            log.warning("the lease could not be created: %s %s", error.status, error.reason)
            return False
        return True

    async def _try(self, call: Any) -> bool:
        started = time.monotonic()
        try:
            async with asyncio.timeout(self._timeout_seconds):
                is_renewed = bool(await call)
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            log.warning("the lease could not be written: %r", error)
            return False
        if is_renewed:
            self.last_renewal = started
        return is_renewed
