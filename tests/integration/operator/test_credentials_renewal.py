"""Two generations of a job's credentials: gRPC servers and Redis refuse the earlier one."""

import base64
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
import redis.asyncio
from cryptography import x509
from grpc_health.v1 import health_pb2, health_pb2_grpc
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from cluster.support.redis_process import RedisProcess
from kubealign.kube.errors import ApiStatusError
from kubealign.process_settings import Role, TlsFiles
from kubealign_operator import names
from kubealign_operator.controller.config import RedisConfig
from kubealign_operator.controller.credentials import Credentials, create_credentials
from kubealign_operator.controller.kube.ownership import JobKey
from kubealign_operator.controller.metrics import OperatorMetrics
from kubealign_operator.controller.platform_redis.server import PlatformRedis
from kubealign_operator.controller.platform_redis.users import RedisUserSync
from kubealign_operator.controller.state.cache import JobStore
from kubealign_services.runtime.rpc.client import connect
from kubealign_services.runtime.rpc.server import RpcServer
from support.rendering.cluster import Cluster
from support.rendering.jobs import sft

pytestmark = pytest.mark.timeout(60, method="signal")

_KEY = JobKey("team", "sft")


@pytest.fixture(scope="module")
def generations() -> list[Credentials]:
    """Credentials of generations 1, 2 and 3, as the planner requests and the executor creates them."""
    cluster = Cluster(sft())
    created = []
    for request in ("a", "b", "c"):
        cluster.job["metadata"]["annotations"] = {"kubealign.dev/renew-credentials": request}
        need = None
        while need is None:
            cluster.now = datetime.now(UTC)
            need = cluster.step().credentials
            cluster.finish_leaving()
        created.append(create_credentials(need, "sft", None))
    return created


def _files(credentials: Credentials, folder: Path, role: Role) -> TlsFiles:
    """Write the files that a pod of the role mounts."""
    folder.mkdir(exist_ok=True)
    data = credentials.manifest["data"]
    paths = []
    for name in ("ca.pem", f"{role}.pem", f"{role}-key.pem"):
        (folder / name).write_bytes(base64.b64decode(data[name]))
        paths.append(folder / name)
    return TlsFiles(ca=paths[0], certificate=paths[1], key=paths[2])


async def _check(address: str, tls: TlsFiles) -> Any:
    async with connect(address, tls) as channel:
        return await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=10)


async def test_a_server_of_a_new_generation_refuses_the_old_client_certificate(
    generations: list[Credentials], tmp_path: Path
) -> None:
    first, second = generations[:2]
    assert first.manifest["metadata"]["name"] == "sft-credentials"
    assert second.manifest["metadata"]["name"] == "sft-credentials-2"
    new = _files(second, tmp_path / "2", Role.DRIVER)
    old = _files(first, tmp_path / "1", Role.DRIVER)
    # A client that knows the new authority but has a certificate of the old one.
    mixed = TlsFiles(ca=new.ca, certificate=old.certificate, key=old.key)
    served = _files(second, tmp_path / "2", Role.TRAINER)
    async with RpcServer("127.0.0.1:0", served, [], lambda *_: None, grace=1.0) as server:
        await _check(server.address, new)
        for stranger in (old, mixed):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await _check(server.address, stranger)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


def test_nothing_of_an_old_generation_is_in_a_new_one(generations: list[Credentials]) -> None:
    first, second = (set(credentials.manifest["data"].values()) for credentials in generations[:2])
    assert not first & second


def test_certificates_are_valid_for_as_long_as_the_status_records(generations: list[Credentials]) -> None:
    data = generations[1].manifest["data"]
    certificate = x509.load_pem_x509_certificate(base64.b64decode(data["driver.pem"]))
    left = certificate.not_valid_after_utc - datetime.now(UTC)
    assert timedelta(days=89, hours=23) < left <= timedelta(days=90, minutes=1)


@pytest.fixture
def process(tmp_path: Path) -> Iterator[RedisProcess]:
    with RedisProcess(tmp_path) as running:
        yield running


@pytest.fixture
async def platform(process: RedisProcess) -> AsyncIterator[PlatformRedis]:
    platform = PlatformRedis(RedisConfig.model_validate(process.config))
    yield platform
    await platform.aclose()


class _Secrets:
    """The Secrets of a namespace."""

    def __init__(self) -> None:
        self.by_name: dict[str, dict[str, Any]] = {}
        self.reads: list[str] = []

    async def get(self, path: str) -> dict[str, Any]:
        name = path.rpartition("/")[2]
        self.reads.append(name)
        if name not in self.by_name:
            raise ApiStatusError("GET", 404, "NotFound", f"secrets {name} not found", None)
        return self.by_name[name]


class _World:
    """One job, its Secrets, and Redis."""

    def __init__(self, platform: PlatformRedis, process: RedisProcess, created: list[Credentials]) -> None:
        self.platform, self.process, self.created = platform, process, created
        self.jobs, self.secrets = JobStore(lambda key: None), _Secrets()
        self.version = 0
        self.sync = self.new_operator()
        self.uid = str(sft()["metadata"]["uid"])

    def new_operator(self) -> RedisUserSync:
        """Start the synchronisation anew, as a restarted operator does."""
        self.sync = RedisUserSync(self.platform, self.secrets, self.jobs, OperatorMetrics(), ())  # type: ignore[arg-type]
        return self.sync

    def record(self, generation: int) -> None:
        """Write the generation to the job's status."""
        self.version += 1
        job = sft()
        job["metadata"]["resourceVersion"] = str(self.version)
        job["status"] = {"phase": "Running", "credentials": {"generation": generation}}
        self.jobs.put(job)

    def create(self, generation: int, *, announced: bool = True) -> None:
        """Create the Secret, and tell the synchronisation unless the operator crashes before."""
        credentials = self.created[generation - 1]
        self.secrets.by_name[credentials.manifest["metadata"]["name"]] = credentials.manifest
        if announced:
            self.sync.on_credentials_issued(_KEY, self.uid, credentials.redis_password, generation)

    def client(self, generation: int) -> redis.asyncio.Redis:
        password = self.created[generation - 1].redis_password
        return redis.asyncio.Redis(
            port=self.process.port,
            username=names.redis_user(self.uid),
            password=password,
            protocol=2,
            retry=Retry(NoBackoff(), 0),
        )

    async def accepted(self) -> set[int]:
        """Return the generations whose password Redis accepts."""
        result = set()
        for generation in range(1, len(self.created) + 1):
            client = self.client(generation)
            try:
                await client.ping()
                result.add(generation)
            except RedisError:
                pass
            await client.aclose()
        return result


@pytest.fixture
def world(platform: PlatformRedis, process: RedisProcess, generations: list[Credentials]) -> _World:
    return _World(platform, process, generations)


async def test_a_renewal_replaces_the_password_of_redis_and_keeps_the_keys(world: _World) -> None:
    world.record(1)
    world.create(1)
    await world.sync.reconcile()
    assert await world.accepted() == {1}
    old = world.client(1)
    await old.hset("kubealign:team:sft:status", "step", "3")
    world.record(2)
    world.create(2)
    await world.sync.reconcile()
    assert await world.accepted() == {2}
    # The connection of the old password is closed too.
    connection = old.connection_pool.get_available_connection()
    with pytest.raises(RedisError):
        await connection.send_command("PING")
        await connection.read_response()
    assert world.process.client().hget("kubealign:team:sft:status", "step") == "3"
    assert world.secrets.reads == []
    await old.aclose()


async def test_a_restarted_operator_completes_a_renewal(world: _World) -> None:
    """Check an operator that ends between the status, the Secret and Redis."""
    world.record(1)
    world.create(1)
    await world.sync.reconcile()
    world.record(2)
    await world.new_operator().reconcile()
    # The Secret does not exist yet, and the old password is revoked.
    assert await world.accepted() == set()
    world.create(2, announced=False)
    await world.new_operator().reconcile()
    assert await world.accepted() == {2}
    # A current user is left alone, also by an operator that does not know it.
    client = world.client(2)
    await client.ping()
    connection = client.connection_pool.get_available_connection()
    await world.new_operator().reconcile()
    await connection.send_command("PING")
    assert await connection.read_response() == b"PONG"
    await client.aclose()
    reads = len(world.secrets.reads)
    await world.sync.reconcile()
    assert len(world.secrets.reads) == reads


async def test_a_job_over_its_quota_gets_no_user_by_a_renewal(world: _World) -> None:
    world.record(1)
    world.create(1)
    await world.sync.reconcile()
    await world.sync.suspend_user(world.uid)
    world.record(2)
    world.create(2)
    await world.sync.reconcile()
    assert await world.accepted() == set()
