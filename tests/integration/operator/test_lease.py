"""Leader election against a server that answers, fails and hangs."""

import asyncio
import json
import time

import pytest
from aiohttp import web

from integration.kube.api_server import ScriptedServer, breaks, hangs, refuses
from kubealign.kube.connections import Connections
from kubealign_operator.controller.config import LeaderElectionConfig
from kubealign_operator.controller.kube.leader_election import LeaderLease, LeaseLost, NotLeader

_SHORT = LeaderElectionConfig(lease_seconds=3, renew_deadline_seconds=1.5, retry_seconds=1.0)


class Leases:
    """Stores one lease, as an API server does; `silent` makes it hang."""

    def __init__(self) -> None:
        self.held: dict[str, object] | None = None
        self.silent = False

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        if self.silent:
            return await hangs(request)
        if request.method in ("POST", "PUT"):
            self.held = json.loads(await request.text())
            return web.json_response(self.held, status=201 if request.method == "POST" else 200)
        if self.held is None:
            return await refuses(404, "NotFound")(request)
        return web.json_response(self.held)

    @property
    def holder(self) -> object:
        spec = (self.held or {}).get("spec")
        return spec.get("holderIdentity") if isinstance(spec, dict) else None


def _lease(connections: Connections, identity: str = "me") -> LeaderLease:
    return LeaderLease(connections.authenticated(), _SHORT, "platform", identity)


async def _acquire(lease: LeaderLease) -> None:
    async with asyncio.timeout(20):
        await lease.acquire()


async def test_acquire_and_release() -> None:
    leases = Leases()
    async with ScriptedServer([leases]) as connections:
        lease = _lease(connections)
        await _acquire(lease)
        lease.ensure_leader()
        assert leases.holder == "me"
        await lease.release()
        assert leases.holder is None
        other = _lease(connections, "other")
        await _acquire(other)
        assert leases.holder == "other"
        # A replica that is no longer the holder does not release the lease.
        await lease.release()
        assert leases.holder == "other"
        await other.release()


async def test_transient_errors_are_failed_attempts() -> None:
    leases = Leases()
    async with ScriptedServer([breaks, refuses(500, "InternalError"), hangs, leases]) as connections:
        lease = _lease(connections)
        await _acquire(lease)
        assert leases.holder == "me"
        await lease.release()


async def test_a_hanging_server_ends_leadership() -> None:
    leases = Leases()
    async with ScriptedServer([leases]) as connections:
        lease = _lease(connections)
        await _acquire(lease)
        leases.silent = True
        async with asyncio.timeout(20):
            with pytest.raises(LeaseLost):
                await lease.wait_until_lost()
        await lease.release()


async def test_no_writes_after_a_long_pause() -> None:
    """Simulate a pause of the whole process, in which no timer has fired yet."""
    async with ScriptedServer([Leases()]) as connections:
        lease = _lease(connections)
        await _acquire(lease)
        time.sleep(_SHORT.lease_seconds + 0.1)  # noqa: ASYNC251 - the pause is the point
        with pytest.raises(NotLeader, match="last renewed"):
            lease.ensure_leader()
        await lease.release()
