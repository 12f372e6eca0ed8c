"""Environment workers behind gRPC with mutual TLS, found by their announcements."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest

from kubealign.access.certificate_authority import CertificateAuthority, write_tls
from kubealign.process_settings import Role, TlsFiles
from kubealign.spec.workflows.environments import EnvironmentSpec
from kubealign.v1.environment_pb2 import EnvironmentRequest, EnvironmentReset, EnvironmentStep
from kubealign.v1.environment_pb2_grpc import EnvironmentsStub
from kubealign_services.environments.contract import EnvironmentFailed, Observation, StepResult
from kubealign_services.environments.pool import EnvironmentPool
from kubealign_services.environments.replicas.announcements import EnvironmentAnnouncer
from kubealign_services.environments.replicas.remote_environments import RemoteEnvironments
from kubealign_services.messaging.memory import MemoryBus
from kubealign_services.roles.environment.servicer import EnvironmentsServicer
from kubealign_services.runtime.process.run_until_stopped import cancel_and_wait
from kubealign_services.runtime.rpc.client import connect
from kubealign_services.runtime.rpc.server import RpcServer

pytestmark = pytest.mark.timeout(120)

GAME = """
import os
import threading

from kubealign_services.environments import StepResult


class Echo:
    def reset(self, seed, columns):
        if columns.get("broken"):
            raise ValueError("no such game")
        self.seed = seed
        return f"hello {seed} {columns['name']}"

    def step(self, action):
        if action == "raise":
            raise KeyError("no such move")
        if action == "hang":
            threading.Event().wait()
        return StepResult(action * 2, reward=self.seed, done=action == "end", metrics={"length": len(action)})
"""
SEED = 2**70 + 1


@dataclass
class Worker:
    """An environment worker in this process. `stop` ends its server at once, without an announcement."""

    servicer: EnvironmentsServicer
    announcer: EnvironmentAnnouncer
    address: str
    stack: AsyncExitStack

    async def stop(self) -> None:
        await self.stack.aclose()


class Site:
    """Workers and a client on one bus."""

    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        (folder / "game.py").write_text(GAME)
        function = {"file": {"path": str(folder / "game.py"), "name": "Echo"}}
        self.spec = EnvironmentSpec.model_validate({"function": function, **settings})
        self.bus = MemoryBus()
        authority = CertificateAuthority.create("job", timedelta(hours=1))
        self.tls: dict[Role, TlsFiles] = {
            role: write_tls(folder, authority, role) for role in (Role.ENVIRONMENT, Role.ROLLOUT, Role.REWARD)
        }

    async def start(self, name: str) -> Worker:
        stack = AsyncExitStack()
        pool = await stack.enter_async_context(EnvironmentPool(self.spec))
        capacity = self.spec.processes * self.spec.concurrency
        servicer = EnvironmentsServicer(pool, capacity)
        tls = self.tls[Role.ENVIRONMENT]
        server = RpcServer("127.0.0.1:0", tls, [servicer], lambda *call: None, grace=0.0)
        await stack.enter_async_context(server)
        await server.set_serving(True)
        announcer = EnvironmentAnnouncer(self.bus, name, server.address, capacity, lambda: servicer.sessions)
        servicer.on_change = announcer.notify
        task = asyncio.create_task(announcer.run())
        stack.push_async_callback(cancel_and_wait, {task})
        return Worker(servicer, announcer, server.address, stack)

    @asynccontextmanager
    async def workers(self, *names: str) -> AsyncIterator[list[Worker]]:
        async with AsyncExitStack() as stack:
            started = [await self.start(name) for name in names]
            for worker in started:
                stack.push_async_callback(worker.stop)
            yield started

    def client(self, live_seconds: float = 60.0) -> RemoteEnvironments:
        return RemoteEnvironments(self.spec, self.bus, "rollout-0", self.tls[Role.ROLLOUT], live_seconds)


@pytest.fixture
def site(tmp_path: Path, request: pytest.FixtureRequest) -> Site:
    return Site(tmp_path, getattr(request, "param", {}))


async def until_sessions(worker: Worker, count: int) -> None:
    """Wait until the worker has this number of episodes."""
    changed = asyncio.Event()
    before = worker.servicer.on_change

    def on_change() -> None:
        before()
        changed.set()

    worker.servicer.on_change = on_change
    async with asyncio.timeout(30):
        while worker.servicer.sessions != count:
            changed.clear()
            await changed.wait()
    worker.servicer.on_change = before


async def test_episodes_are_divided_among_the_workers_and_end_there(site: Site) -> None:
    async with site.workers("environment-0", "environment-1") as workers, site.client() as client:
        async with AsyncExitStack() as episodes:
            sessions = [
                await episodes.enter_async_context(client.open(SEED, {"name": "Ann"})) for _ in range(4)
            ]
            assert [worker.servicer.sessions for worker in workers] == [2, 2]
            for session in sessions:
                assert session.observation == Observation(f"hello {SEED} Ann")
                result = await session.step("ab")
                assert result == StepResult(Observation("abab"), float(SEED), metrics={"length": 2.0})
            assert (await sessions[0].step("end")).done
        assert [worker.servicer.sessions for worker in workers] == [0, 0]


@pytest.mark.parametrize("site", [{"concurrency": 1}], indirect=True)
async def test_an_episode_waits_for_a_worker_with_room(site: Site) -> None:
    async with site.workers("environment-0") as [worker], site.client() as client:
        async with client.open(1, {"name": "first"}):
            waiting = asyncio.create_task(client.open(2, {"name": "second"}).__aenter__())
            # A second client does not know of the first: the worker itself refuses.
            stub = EnvironmentsStub(connect(worker.address, site.tls[Role.ROLLOUT], Role.ENVIRONMENT))
            call = stub.Play(timeout=20)
            assert (await call.read()).refused
            assert not waiting.done()
        session = await waiting
        assert session.observation == Observation("hello 2 second")


async def test_a_lost_worker_fails_its_episodes_and_no_others(site: Site) -> None:
    async with (
        site.workers("environment-0", "environment-1") as [one, other],
        site.client() as client,
        client.open(1, {"name": "kept"}) as first,
    ):
        with pytest.raises(EnvironmentFailed, match=r"environment-\d at .* was lost during the episode"):
            async with client.open(2, {"name": "failed"}) as second:
                victim, survivor = (one, other) if one.address in second.worker else (other, one)
                await victim.stop()
                await second.step("a")
        assert (await first.step("b")).observation == Observation("bb")
        for number in range(3):
            async with client.open(number, {"name": "next"}) as session:
                assert session.observation == Observation(f"hello {number} next")
                assert survivor.servicer.sessions == 2


async def test_a_worker_that_leaves_finishes_its_episodes_and_gets_no_others(site: Site) -> None:
    async with site.workers("environment-0") as [leaving], site.client() as client:
        async with client.open(1, {"name": "last"}) as session:
            await leaving.announcer.leave()
            finished = asyncio.create_task(leaving.servicer.finish())
            async with (
                site.workers("environment-1") as [other],
                client.open(2, {"name": "elsewhere"}),
            ):
                assert (leaving.servicer.sessions, other.servicer.sessions) == (1, 1)
            assert not finished.done()
            assert (await session.step("a")).observation == Observation("aa")
        async with asyncio.timeout(20):
            await finished


@pytest.mark.parametrize("site", [{"stepTimeoutSeconds": 0.5}], indirect=True)
async def test_errors_of_the_environment_name_the_call_and_the_worker(site: Site) -> None:
    async with site.workers("environment-0"), site.client() as client:
        with pytest.raises(EnvironmentFailed, match=r"reset raised ValueError: no such game.*environment-0"):
            async with client.open(1, {"broken": True}):
                pass
        for action, error in (("raise", "step raised KeyError"), ("hang", "stepTimeoutSeconds")):
            with pytest.raises(EnvironmentFailed, match=error):
                async with client.open(1, {"name": action}) as session:
                    await session.step(action)


async def test_an_episode_that_is_cancelled_ends_in_its_worker(site: Site) -> None:
    async with site.workers("environment-0") as [worker], site.client() as client:
        entered = asyncio.Event()

        async def play() -> None:
            async with client.open(1, {"name": "cancelled"}):
                entered.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(play())
        async with asyncio.timeout(30):
            await entered.wait()
        await cancel_and_wait({task})
        await until_sessions(worker, 0)


async def test_without_a_worker_the_error_says_so(site: Site) -> None:
    async with site.client(live_seconds=0.2) as client:
        with pytest.raises(
            EnvironmentFailed, match=r"no environment worker was ready within 0\.2 s; none has"
        ):
            async with client.open(1, {}):
                pass


async def test_invalid_requests_and_other_roles_are_refused(site: Site) -> None:
    async with site.workers("environment-0") as [worker]:
        bad = (
            (EnvironmentRequest(step=EnvironmentStep(action="a")), "first request of an episode is a step"),
            (EnvironmentRequest(reset=EnvironmentReset(seed="true", columns="{}")), "seed is True"),
            (EnvironmentRequest(reset=EnvironmentReset(seed="1", columns="[]")), "columns is a list"),
            (EnvironmentRequest(reset=EnvironmentReset(seed="x", columns="{}")), "JSON"),
        )
        async with connect(worker.address, site.tls[Role.ROLLOUT], Role.ENVIRONMENT) as channel:
            for request, problem in bad:
                call = EnvironmentsStub(channel).Play(timeout=20)
                await call.write(request)
                assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
                assert problem in (await call.details() or "")
        async with connect(worker.address, site.tls[Role.REWARD], Role.ENVIRONMENT) as channel:
            call = EnvironmentsStub(channel).Play(timeout=20)
            assert await call.code() is grpc.StatusCode.PERMISSION_DENIED
