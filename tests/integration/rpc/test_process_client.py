"""The client of `kubealign call` with a real server: certificates, streams, errors, deadlines."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from kubealign.access.certificate_authority import CertificateAuthority, write_tls
from kubealign.client.errors import Conflict, Forbidden, NotPossible, Unavailable
from kubealign.client.process_calls.local_process import LocalProcess
from kubealign.client.process_calls.methods import find_method
from kubealign.client.process_calls.process_client import ProcessClient
from kubealign.process_settings import Role
from kubealign.v1 import driver_pb2, driver_pb2_grpc, rollout_pb2, rollout_pb2_grpc
from kubealign_services.checkpoints.fence import StaleFence
from kubealign_services.runtime.rpc.server import RpcServer

pytestmark = pytest.mark.timeout(60)


class Driver(driver_pb2_grpc.DriverServicer):
    """Reports a step; raises `failure` if it is set."""

    failure: Exception | None = None

    async def Progress(self, request: Any, context: Any) -> driver_pb2.Progress:
        if self.failure is not None:
            raise self.failure
        return driver_pb2.Progress(step=7)


class Rollout(rollout_pb2_grpc.RolloutServiceServicer):
    """Generates two samples, then hangs."""

    async def Generate(self, request: Any, context: Any) -> AsyncIterator[rollout_pb2.Rollout]:
        for sample in range(2):
            yield rollout_pb2.Rollout(group_id=request.item.group_id, sample=sample)
        await asyncio.Event().wait()


@pytest.fixture
def tls(tmp_path: Path) -> Path:
    """Write the certificates of a run."""
    authority = CertificateAuthority.create("called", timedelta(hours=1))
    for role in (Role.DRIVER, Role.REWARD, Role.RUNNER):
        write_tls(tmp_path, authority, role)
    return tmp_path


@pytest.fixture
def driver() -> Driver:
    return Driver()


@pytest.fixture
async def client(tls: Path, driver: Driver) -> AsyncIterator[ProcessClient]:
    files = LocalProcess("driver", "", tls).certificate(["driver"])
    async with RpcServer("127.0.0.1:0", files, [driver, Rollout()], lambda *call: None, grace=0.1) as server:
        yield ProcessClient(LocalProcess("driver", server.address, tls))


async def call(client: ProcessClient, name: str, request: str = "", timeout: float = 20.0) -> list[Any]:
    method = find_method("driver", await client.methods(20.0), name)
    replies: list[Any] = []
    try:
        async for reply in client.call(method, method.parse_request(request), timeout):
            replies.append(reply)
    finally:
        assert method.name != "RolloutService.Generate" or [reply.sample for reply in replies] == [0, 1]
    return replies


async def test_methods_are_those_that_the_process_serves(client: ProcessClient) -> None:
    names = [method.name for method in await client.methods(20.0)]
    assert names == ["Driver.Progress", "RolloutService.Generate", "RolloutService.Status"]


async def test_call_uses_the_certificate_of_an_allowed_role(client: ProcessClient) -> None:
    (reply,) = await call(client, "Progress")
    assert reply == driver_pb2.Progress(step=7)


async def test_replies_of_a_stream_are_yielded_until_the_deadline(client: ProcessClient) -> None:
    expected = "driver at 127.0.0.1:.* did not answer RolloutService.Generate within 1 s: "
    with pytest.raises(Unavailable, match=expected):
        await call(client, "Generate", '{"item": {"group_id": "a"}}', timeout=1.0)


async def test_refusal_has_the_text_of_the_server(client: ProcessClient, tls: Path) -> None:
    for suffix in (".pem", "-key.pem"):
        shutil.copy(tls / f"reward{suffix}", tls / f"runner{suffix}")
    expected = "driver Driver.Progress: the role reward may not call .*/Progress: only runner may"
    with pytest.raises(Forbidden, match=expected):
        await call(client, "Progress")


async def test_run_without_an_allowed_certificate(client: ProcessClient, tls: Path) -> None:
    (tls / "driver-key.pem").unlink()
    with pytest.raises(NotPossible, match="no certificate that may call driver: only driver may"):
        await call(client, "Status")


async def test_errors_have_the_text_of_the_server(client: ProcessClient, driver: Driver) -> None:
    driver.failure = StaleFence("fence 1 has been replaced by 2")
    with pytest.raises(Conflict, match=r"driver Driver.Progress: fence 1 has been replaced by 2"):
        await call(client, "Progress")
    driver.failure = KeyError("a bug")
    with pytest.raises(NotPossible, match=r"driver Driver.Progress: KeyError: 'a bug'"):
        await call(client, "Progress")


async def test_process_that_does_not_listen(tls: Path) -> None:
    client = ProcessClient(LocalProcess("driver", "127.0.0.1:1", tls))
    with pytest.raises(Unavailable, match=r"driver at .*:1 could not be reached for the list of methods: "):
        await client.methods(20.0)
