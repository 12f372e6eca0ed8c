"""A real server and real clients over mutual TLS: authorization, exceptions, health."""

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from kubealign.access.certificate_authority import CertificateAuthority, write_tls
from kubealign.process_settings import Role, TlsFiles
from kubealign.v1 import refit_pb2, sender_pb2_grpc, trainer_pb2_grpc, training_pb2
from kubealign_services.batch.codec import CorruptBatch
from kubealign_services.checkpoints.fence import StaleFence
from kubealign_services.runtime.rpc.client import Peer, connect
from kubealign_services.runtime.rpc.errors import (
    InvalidRequest,
    Refused,
    RemoteFailure,
    Unreachable,
)
from kubealign_services.runtime.rpc.server import PortInUse, RpcServer
from kubealign_services.training.contract import NonFiniteLoss

pytestmark = pytest.mark.timeout(60)


class Observed(list[tuple[str, str]]):
    """Methods and codes of finished calls. A rejection may reach its caller before it is counted."""

    def __init__(self) -> None:
        super().__init__()
        self._more = asyncio.Event()

    def append(self, call: tuple[str, str]) -> None:
        super().append(call)
        self._more.set()

    async def once(self, count: int) -> list[tuple[str, str]]:
        """Return the calls once there are this many."""
        async with asyncio.timeout(20.0):
            while len(self) < count:
                self._more.clear()
                await self._more.wait()
        return self


class Trainer(trainer_pb2_grpc.TrainerServicer):
    """Fails as instructed; `blocked` is set while a call hangs."""

    def __init__(self) -> None:
        self.failure: Exception | None = None
        self.blocked = asyncio.Event()

    async def Describe(self, request: Any, context: Any) -> training_pb2.TrainingState:
        if self.failure is not None:
            raise self.failure
        return training_pb2.TrainingState(fence=3, step=7)

    async def TrainStep(self, request: Any, context: Any) -> training_pb2.TrainStepReply:
        self.blocked.set()
        await asyncio.Event().wait()
        raise AssertionError("never")


class Sender(sender_pb2_grpc.WeightsSenderServicer):
    """Streams chunks, and fails when the trainer does."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer

    async def FetchWeights(self, request: Any, context: Any) -> AsyncIterator[refit_pb2.WeightsChunk]:
        for index in range(3):
            yield refit_pb2.WeightsChunk(offset_bytes=index)
        if self._trainer.failure is not None:
            raise self._trainer.failure


@pytest.fixture
def authority() -> CertificateAuthority:
    return CertificateAuthority.create("rpc-test", timedelta(hours=1))


@pytest.fixture
def tls(tmp_path: Path, authority: CertificateAuthority) -> Callable[[Role], TlsFiles]:
    return lambda role: write_tls(tmp_path, authority, role)


@pytest.fixture
def trainer() -> Trainer:
    return Trainer()


@pytest.fixture
def observed() -> Observed:
    return Observed()


@pytest.fixture
async def server(
    tls: Callable[[Role], TlsFiles], trainer: Trainer, observed: Observed
) -> AsyncIterator[RpcServer]:
    def observe(method: str, code: str, seconds: float) -> None:
        assert seconds >= 0
        observed.append((method.rpartition("/")[2], code))

    async with RpcServer(
        "127.0.0.1:0", tls(Role.TRAINER), [trainer, Sender(trainer)], observe, grace=1.0
    ) as running:
        yield running


@pytest.fixture
async def driver(server: RpcServer, tls: Callable[[Role], TlsFiles]) -> AsyncIterator[Peer]:
    async with Peer("trainer", server.address, tls(Role.DRIVER), trainer_pb2_grpc.TrainerStub) as peer:
        yield peer


async def test_allowed_role_is_answered(driver: Peer, observed: Observed) -> None:
    state = await driver.call("Describe", training_pb2.DescribeRequest(), timeout=20.0)
    assert (state.fence, state.step) == (3, 7)
    assert observed == [("Describe", "OK")]


async def test_server_of_another_role_is_refused(tls: Callable[[Role], TlsFiles], trainer: Trainer) -> None:
    """Each certificate is valid at each host of the job, so the client asks for the role of the server."""
    stub = trainer_pb2_grpc.TrainerStub
    async with RpcServer(
        "127.0.0.1:0", tls(Role.REWARD), [trainer], lambda method, code, seconds: None, grace=1.0
    ) as server:
        await server.set_serving(True)
        async with Peer("trainer", server.address, tls(Role.DRIVER), stub, Role.TRAINER) as peer:
            refusal = "its certificate is not one of the role trainer"
            with pytest.raises(Unreachable, match=refusal):
                await peer.call("Describe", training_pb2.DescribeRequest(), timeout=20.0)
            with pytest.raises(Unreachable, match=refusal):
                await peer.wait_until_ready(2.0)


async def test_server_of_the_requested_role_is_accepted(
    server: RpcServer, tls: Callable[[Role], TlsFiles]
) -> None:
    await server.set_serving(True)
    stub = trainer_pb2_grpc.TrainerStub
    async with Peer("trainer", server.address, tls(Role.DRIVER), stub, Role.TRAINER) as peer:
        await peer.wait_until_ready(20.0)
        assert (await peer.call("Describe", training_pb2.DescribeRequest(), timeout=20.0)).step == 7


async def test_jobs_of_older_releases_have_no_names_of_roles(
    tls: Callable[[Role], TlsFiles], trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as older_release:
        older_release.setattr(Role, "server_name", property(lambda role: "localhost"))
        files, driver_files = tls(Role.TRAINER), tls(Role.DRIVER)
    stub = trainer_pb2_grpc.TrainerStub
    async with (
        RpcServer("127.0.0.1:0", files, [trainer], lambda *call: None, grace=1.0) as server,
        Peer("trainer", server.address, driver_files, stub, Role.TRAINER) as peer,
    ):
        state = await peer.call("Describe", training_pb2.DescribeRequest(), timeout=20.0)
        assert state.step == 7


async def test_other_role_is_refused(
    server: RpcServer, tls: Callable[[Role], TlsFiles], observed: Observed
) -> None:
    async with Peer("trainer", server.address, tls(Role.REWARD), trainer_pb2_grpc.TrainerStub) as peer:
        with pytest.raises(Refused, match=r"role reward may not call .*Describe: only driver may"):
            await peer.call("Describe", training_pb2.DescribeRequest(), timeout=20.0)
    async with Peer("sender", server.address, tls(Role.REWARD), sender_pb2_grpc.WeightsSenderStub) as peer:
        with pytest.raises(Refused, match="only reference, rollout, trainer may"):
            async for _ in peer.stream("FetchWeights", refit_pb2.FetchWeightsRequest(), timeout=20.0):
                raise AssertionError("a chunk came")
    refused = [("Describe", "PERMISSION_DENIED"), ("FetchWeights", "PERMISSION_DENIED")]
    assert await observed.once(2) == refused


async def test_client_without_a_certificate_is_refused(
    server: RpcServer, tls: Callable[[Role], TlsFiles], observed: Observed
) -> None:
    trusting = grpc.ssl_channel_credentials(root_certificates=tls(Role.DRIVER).ca.read_bytes())
    for channel in (
        grpc.aio.secure_channel(server.address, trusting),
        grpc.aio.insecure_channel(server.address),
    ):
        async with channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=10)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert observed == []


async def test_client_of_another_job_is_refused(
    server: RpcServer, tmp_path: Path, observed: Observed
) -> None:
    stranger = write_tls(
        tmp_path / "x", CertificateAuthority.create("rpc-test", timedelta(hours=1)), Role.DRIVER
    )
    ours = tmp_path / "ca.pem"
    for ca in (stranger.ca, ours):
        files = TlsFiles(ca=ca, certificate=stranger.certificate, key=stranger.key)
        async with Peer("trainer", server.address, files, trainer_pb2_grpc.TrainerStub) as peer:
            gone = r"trainer at 127\.0\.0\.1:\d+ could not be reached for Describe"
            with pytest.raises(Unreachable, match=gone):
                await peer.call("Describe", training_pb2.DescribeRequest(), timeout=10.0)
    assert observed == []


async def test_a_call_without_a_deadline_is_refused(
    server: RpcServer, tls: Callable[[Role], TlsFiles], observed: Observed
) -> None:
    async with connect(server.address, tls(Role.DRIVER)) as channel:
        trainer: Any = trainer_pb2_grpc.TrainerStub(channel)  # type: ignore[no-untyped-call]
        health = health_pb2_grpc.HealthStub(channel)
        for call in (
            trainer.Describe(training_pb2.DescribeRequest()),
            health.Check(health_pb2.HealthCheckRequest()),
        ):
            with pytest.raises(grpc.aio.AioRpcError, match="without a deadline") as caught:
                await call
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert sorted(await observed.once(2)) == [("Check", "INVALID_ARGUMENT"), ("Describe", "INVALID_ARGUMENT")]


@pytest.mark.parametrize(
    "failure",
    [
        StaleFence("fence 3 is older than 4"),
        InvalidRequest("step holds 9; it may be 8"),
        CorruptBatch("the columns have digest a, announced was b"),
        NonFiniteLoss("the loss is nan"),
    ],
    ids=lambda failure: type(failure).__name__,
)
async def test_exceptions_arrive_as_raised(driver: Peer, trainer: Trainer, failure: Exception) -> None:
    trainer.failure = failure
    with pytest.raises(type(failure)) as caught:
        await driver.call("Describe", training_pb2.DescribeRequest(), timeout=20.0)
    assert type(caught.value) is type(failure)
    assert str(failure) in str(caught.value)


async def test_unlisted_exception_is_logged_with_its_traceback(
    driver: Peer, trainer: Trainer, observed: Observed, caplog: pytest.LogCaptureFixture
) -> None:
    trainer.failure = ZeroDivisionError("division by zero")
    with pytest.raises(RemoteFailure, match="trainer Describe: ZeroDivisionError: division by zero"):
        await driver.call("Describe", training_pb2.DescribeRequest(), timeout=20.0)
    assert await observed.once(1) == [("Describe", "INTERNAL")]
    assert any(record.exc_info and record.levelname == "ERROR" for record in caplog.records)


async def test_stream_ends_or_fails(
    server: RpcServer, tls: Callable[[Role], TlsFiles], trainer: Trainer, observed: Observed
) -> None:
    stub = sender_pb2_grpc.WeightsSenderStub
    async with Peer("sender", server.address, tls(Role.ROLLOUT), stub) as peer:
        request = refit_pb2.FetchWeightsRequest()
        chunks = [chunk.offset_bytes async for chunk in peer.stream("FetchWeights", request, timeout=20.0)]
        assert chunks == [0, 1, 2]
        trainer.failure = CorruptBatch("gone")
        chunks = []
        with pytest.raises(CorruptBatch, match="gone"):
            async for chunk in peer.stream("FetchWeights", request, timeout=20.0):
                chunks.append(chunk.offset_bytes)
        assert chunks == [0, 1, 2]
    assert await observed.once(2) == [("FetchWeights", "OK"), ("FetchWeights", "DATA_LOSS")]


async def test_timeout_names_the_peer_and_the_method(driver: Peer, trainer: Trainer) -> None:
    late = r"^trainer at 127\.0\.0\.1:\d+ did not answer TrainStep within 1 s$"
    with pytest.raises(Unreachable, match=late):
        await driver.call("TrainStep", training_pb2.TrainStepRequest(), timeout=1.0)
    assert trainer.blocked.is_set()
    trainer.blocked.is_set()


async def test_unreachable_peer_is_reported(tls: Callable[[Role], TlsFiles], server: RpcServer) -> None:
    address = server.address
    await server.__aexit__(None, None, None)
    async with Peer("trainer", address, tls(Role.DRIVER), trainer_pb2_grpc.TrainerStub) as peer:
        with pytest.raises(Unreachable, match="could not be reached for Describe"):
            await peer.call("Describe", training_pb2.DescribeRequest(), timeout=5.0)
        with pytest.raises(Unreachable, match=r"trainer at .* was not ready within 0\.5 s"):
            await peer.wait_until_ready(0.5)


async def test_health_starts_not_serving(server: RpcServer, tls: Callable[[Role], TlsFiles]) -> None:
    """Check that any role of the job may ask for the health of the server and of each service."""
    states = health_pb2.HealthCheckResponse
    runner = Peer("trainer", server.address, tls(Role.RUNNER), trainer_pb2_grpc.TrainerStub)
    async with connect(server.address, tls(Role.RUNNER)) as channel, runner:
        stub = health_pb2_grpc.HealthStub(channel)
        for service in ("", "kubealign.v1.Trainer"):
            reply = await stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=10)
            assert reply.status == states.NOT_SERVING
        waiting = asyncio.create_task(runner.wait_until_ready(20.0))
        watch = stub.Watch(health_pb2.HealthCheckRequest(service="kubealign.v1.Trainer"))
        assert (await watch.read()).status == states.NOT_SERVING
        await server.set_serving(True)
        assert (await watch.read()).status == states.SERVING
        await waiting
        watch.cancel()


async def test_lost_peer_is_detected(server: RpcServer, driver: Peer) -> None:
    await server.set_serving(True)
    watching = asyncio.create_task(driver.wait_until_unreachable())
    await driver.wait_until_ready(20.0)
    assert not watching.done()
    await server.set_serving(False)
    with pytest.raises(Unreachable, match=r"trainer at .* was lost: it no longer serves"):
        await asyncio.wait_for(watching, 20.0)


async def test_reflection_lists_the_services(server: RpcServer, tls: Callable[[Role], TlsFiles]) -> None:
    async with connect(server.address, tls(Role.RUNNER)) as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        call = stub.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(list_services="")]))
        reply = await call.read()
        names = {service.name for service in reply.list_services_response.service}
        call.cancel()
    assert names == {
        "kubealign.v1.Trainer",
        "kubealign.v1.WeightsSender",
        "grpc.health.v1.Health",
        "grpc.reflection.v1alpha.ServerReflection",
    }


async def test_port_in_use_is_named(
    server: RpcServer, tls: Callable[[Role], TlsFiles], trainer: Trainer
) -> None:
    with pytest.raises(PortInUse, match=f"cannot listen at {server.address}: end the process that has it"):
        async with RpcServer(server.address, tls(Role.TRAINER), [trainer], lambda *_: None):
            raise AssertionError("two servers share a port")
    AssertionError("two servers share a port")


async def test_messages_larger_than_grpcs_default_pass(driver: Peer, trainer: Trainer) -> None:
    request = training_pb2.TrainStepRequest(driver_state=bytes(6 << 20))
    calling = asyncio.create_task(driver.call("TrainStep", request, timeout=30.0))
    await asyncio.wait_for(trainer.blocked.wait(), 20.0)
    calling.cancel()
    await asyncio.gather(calling, return_exceptions=True)


async def test_only_generated_servicers_can_be_served(tls: Callable[[Role], TlsFiles]) -> None:
    with pytest.raises(TypeError, match="derives from no generated"):
        RpcServer("127.0.0.1:0", tls(Role.TRAINER), [object()], lambda *_: None)
