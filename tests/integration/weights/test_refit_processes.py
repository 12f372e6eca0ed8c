"""The refit protocol between processes: JetStream, mutual TLS, both transports, a kill, a late joiner."""

import asyncio
import functools
import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from kubealign.access.certificate_authority import CertificateAuthority, write_tls
from kubealign.local.servers.nats import LocalNatsServer
from kubealign.process_settings import Role
from kubealign.spec.sections.precision import Precision
from kubealign.spec.sections.rollout import WeightTransport
from kubealign.v1 import refit_pb2, sender_pb2_grpc
from kubealign_services.messaging.jetstream.bus import JetStreamBus
from kubealign_services.runtime.rpc.server import RpcServer
from kubealign_services.weights.announce.coordinator import RefitCoordinator, RefitFailed
from kubealign_services.weights.send.publisher import WeightsPublisher
from kubealign_services.weights.verify.canary import Canary

sys.path.insert(0, str(Path(__file__).parent))

from refit_worker_process import VOCABULARY, Bigram  # type: ignore[import-not-found]

from support.free_address import free_port

pytestmark = pytest.mark.timeout(150)

Test = Callable[["Stage"], Coroutine[Any, Any, None]]


class Sender(sender_pb2_grpc.WeightsSenderServicer):
    """Serves snapshots. `harm` may alter each chunk."""

    def __init__(self, publisher: WeightsPublisher) -> None:
        self._publisher = publisher
        self.harm: Callable[[refit_pb2.WeightsChunk], None] = lambda chunk: None

    async def FetchWeights(self, request: Any, context: Any) -> AsyncIterator[refit_pb2.WeightsChunk]:
        for chunk in self._publisher.chunks(request):
            self.harm(chunk)
            yield chunk


class Stage:
    """A NATS server, the trainer's sending side in this process, and worker processes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._authority = CertificateAuthority.create("refit-test", timedelta(hours=1))
        self._stack = AsyncExitStack()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.shared = folder / "shared"
        self.model = Bigram(seed=1)
        self.published: list[int] = []

    async def open(self, transport: WeightTransport) -> None:
        tls = write_tls(self._folder / "nats", self._authority, Role.RUNNER)
        self._nats = LocalNatsServer(
            self._folder / "nats", free_port(), "refit-test", secrets.token_hex(8), tls
        )
        self._start("nats", self._nats.command())
        await asyncio.wait_for(self._nats.wait_ready(), 20)
        trainer_tls = write_tls(self._folder / "trainer", self._authority, Role.TRAINER)
        driver_tls = write_tls(self._folder / "driver", self._authority, Role.DRIVER)
        address = f"localhost:{free_port()}"
        self.publisher = WeightsPublisher(self.shared, address, transport)
        self._stack.callback(self.publisher.close)
        self.trainer = Sender(self.publisher)
        server = RpcServer(
            address, trainer_tls, [self.trainer], lambda method, code, seconds: None, grace=1.0
        )
        await self._stack.enter_async_context(server)
        self.bus = await JetStreamBus.connect(self._nats.access, driver_tls, name="driver")
        self._stack.push_async_callback(self.bus.close)

    def worker(self, name: str, elsewhere: bool = False) -> None:
        """Start a worker process; a worker on another machine has a separate shared memory."""
        shared = self._folder / f"shared-{name}" if elsewhere else self.shared
        shared.mkdir(exist_ok=True)
        settings = self._folder / f"{name}.json"
        tls = write_tls(self._folder / name, self._authority, Role.ROLLOUT)
        settings.write_text(
            json.dumps(
                {
                    "name": name,
                    "nats": self._nats.access.model_dump_json(),
                    "tls": tls.model_dump_json(),
                    "shared_memory": str(shared),
                }
            )
        )
        program = Path(__file__).with_name("refit_worker_process.py")
        self._start(name, [sys.executable, str(program), str(settings)])

    def kill(self, name: str) -> None:
        process = self._processes.pop(name)
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=20)

    def broadcast(self, fence: int, min_replicas: int, replicas: int, timeout: float) -> RefitCoordinator:
        return RefitCoordinator(
            self.bus,
            self.publish,
            fence=fence,
            min_replicas=min_replicas,
            replicas=replicas,
            timeout=timeout,
        )

    async def publish(self, fence: int, version: int) -> refit_pb2.WeightsAnnouncement:
        self.published.append(version)
        canary = Canary.choose(1, VOCABULARY, [Precision.FLOAT32])
        return await asyncio.to_thread(
            self.publisher.publish,
            fence=fence,
            version=version,
            tensors=iter(self.model.weights.items()),
            canary=canary.to_proto(self.model.logprobs(canary.tokens)),
        )

    def step(self) -> None:
        for weight in self.model.weights.values():
            weight.mul_(0.99).add_(0.001)

    def logs(self) -> str:
        return "\n".join(path.read_text() for path in self._folder.glob("*.log"))

    async def close(self) -> None:
        try:
            await self._stack.aclose()
        finally:
            for name in list(self._processes):
                self.kill(name)

    def _start(self, name: str, command: list[str]) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        with (self._folder / f"{name}.log").open("wb") as log:
            self._processes[name] = subprocess.Popen(command, stdout=log, stderr=log, env=environment)


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    new_stage = Stage(tmp_path)
    try:
        yield new_stage
    finally:
        await new_stage.close()


def within(seconds: float) -> Callable[[Test], Test]:
    """Limit a test's duration, so that its processes can be ended."""

    def decorate(test: Test) -> Test:
        @functools.wraps(test)
        async def run(stage: Stage) -> None:
            async with asyncio.timeout(seconds):
                await test(stage)

        return run

    return decorate


@within(100)
async def test_versions_reach_local_and_remote_processes_through_a_kill_and_a_late_joiner(
    stage: Stage,
) -> None:
    await stage.open(WeightTransport.AUTO)
    stage.worker("near")
    stage.worker("far", elsewhere=True)
    async with stage.broadcast(fence=1, min_replicas=2, replicas=2, timeout=60) as broadcast:
        for version in range(10):
            report = await broadcast.publish(version)
            assert {name: answer.transport for name, answer in report.committed.items()} == {
                "near": "shared_memory",
                "far": "stream",
            }, stage.logs()
            # 2 x 2000 x 300 numbers of 4 bytes.
            assert {answer.received_bytes for answer in report.committed.values()} == {4_800_000}
            assert report.metrics()["refit/canary_gap"] < 1e-4
            stage.step()
        stage.kill("near")
    async with stage.broadcast(fence=1, min_replicas=1, replicas=2, timeout=60) as broadcast:
        report = await broadcast.publish(10)
        assert set(report.committed) == {"far"}, stage.logs()
    # A late worker takes the current version, which restores the quorum of two.
    stage.worker("late")
    answers: list[refit_pb2.RefitAcknowledgement] = []
    while not answers:
        for delivery in await stage.bus.pull("refit-acks", "driver", 8, 30.0):
            answer = refit_pb2.RefitAcknowledgement.FromString(delivery.data)
            await delivery.ack()
            if answer.worker == "late":
                answers.append(answer)
    (answer,) = answers
    assert (answer.weights.version, answer.error, answer.transport) == (10, "", "shared_memory")
    stage.step()
    async with stage.broadcast(fence=2, min_replicas=2, replicas=2, timeout=60) as broadcast:
        report = await broadcast.publish(10)
        assert set(report.committed) == {"far", "late"}, stage.logs()
    assert stage.published == [*range(11), 10]


@within(100)
async def test_corrupt_stream_is_refused_then_repaired_and_else_fails(stage: Stage) -> None:
    await stage.open(WeightTransport.STREAM)
    stage.worker("worker")

    def flip(chunk: refit_pb2.WeightsChunk) -> None:
        chunk.data = chunk.data[:-1] + bytes([chunk.data[-1] ^ 0x10])

    def flip_first_publication(chunk: refit_pb2.WeightsChunk) -> None:
        if len(stage.published) == 1:
            flip(chunk)

    stage.trainer.harm = flip_first_publication
    async with stage.broadcast(fence=1, min_replicas=1, replicas=1, timeout=60) as broadcast:
        report = await broadcast.publish(0)
        assert (report.retries, stage.published) == (1, [0, 0]), stage.logs()
        stage.trainer.harm = flip
        with pytest.raises(RefitFailed, match=r"worker: CorruptTransfer: 1 of 2 tensors from .* have"):
            await broadcast.publish(1)
        # A worker that dies during a refit is reported as not answering.
        stage.trainer.harm = lambda chunk: stage.kill("worker") if "worker" in stage._processes else None
        broadcast._timeout = 2.0
        with pytest.raises(RefitFailed, match=r"First try: worker: no answer within 2(\.\d)? s"):
            await broadcast.publish(2)
