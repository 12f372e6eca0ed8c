"""Operators of several clusters with one real Redis: none of them touches users or keys of another one."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import NoPermissionError

from cluster.support.redis_process import RedisProcess
from integration.kube.api_server import Json, ScriptedServer
from integration.operator.test_manager import Objects
from kubealign.access.redis_acl import prefix_pattern
from kubealign.access.redis_names import CLUSTER_ID_PATTERN, job_prefix, key_prefix
from kubealign.client.records import JobRef
from kubealign.kube.api import allow_writes
from kubealign.pod_contract import PodRedis, PodSettings
from kubealign_dashboard.cluster.service import telemetry_of
from kubealign_dashboard.cluster.settings import from_environment
from kubealign_operator.controller.config import ConfigError, OperatorConfig, RedisConfig, load_config
from kubealign_operator.controller.kube.ownership import JobKey
from kubealign_operator.controller.manager import OperatorManager
from kubealign_operator.controller.metrics import OperatorMetrics
from kubealign_operator.controller.platform_redis.server import PlatformRedis
from support.rendering.jobs import sft

pytestmark = pytest.mark.timeout(120, method="signal")

#: The first has the names of a Redis that is not shared; names of the last begin like those of the second.
CLUSTERS = ("", "east", "east-1")
_SECONDS = 20.0


@pytest.fixture
def process(tmp_path: Path) -> Iterator[RedisProcess]:
    with RedisProcess(tmp_path) as running:
        yield running


class _ClusterWithJob:
    """API server of one cluster with the job default/sft, and its operator."""

    def __init__(self, cluster_id: str, process: RedisProcess) -> None:
        platform = {"image": "none", "redisHost": "none", "clusterId": cluster_id}
        document = {"platform": platform, "redis": process.config, "workers": 2}
        self.config = OperatorConfig.model_validate(document)
        job = sft()
        job["metadata"]["uid"] = f"uid-{cluster_id or 'alone'}"
        self.server = Objects(job)
        self.process = process

    @asynccontextmanager
    async def operator(self) -> AsyncIterator[None]:
        """Run the operator."""
        async with ScriptedServer([self.server]) as connections:
            manager = OperatorManager(self.config, connections, OperatorMetrics(), "replica", allow_writes)
            async with aclosing(manager):
                tasks = [asyncio.create_task(watcher) for watcher in manager.watchers()]
                try:
                    await manager.wait_for_sync()
                    tasks += [asyncio.create_task(worker) for worker in manager.workers()]
                    yield
                finally:
                    for task in tasks:
                        task.cancel()
                    await asyncio.wait(tasks)

    def settings(self) -> list[str]:
        """Return the settings of the job's pods; the bus has none."""
        return [
            item["value"]
            for pod in self.server.objects["pods"].values()
            for item in pod["spec"]["containers"][0]["env"]
            if item["name"] == "KUBEALIGN_SETTINGS"
        ]

    def access(self) -> PodRedis:
        """Return the access to Redis with which the job's pods start."""
        return PodSettings.model_validate_json(self.settings()[0]).redis

    def client(self) -> Redis:
        """Return the job's own client."""
        data: Json = self.server.objects["secrets"]["sft-credentials"]["data"]
        password = base64.b64decode(data["redis-password"]).decode()
        return self.process.client(self.access().user, password)


async def _until(is_true: Callable[[], bool], event: str) -> None:
    """Wait for a change that no event announces."""
    try:
        async with asyncio.timeout(_SECONDS):
            while not is_true():  # noqa: ASYNC110
                await asyncio.sleep(0.02)
    except TimeoutError as error:
        raise AssertionError(f"waited {_SECONDS:g} s for {event}") from error


async def test_operators_of_two_clusters_leave_each_other_alone(process: RedisProcess) -> None:
    """Run a job of the same name in each cluster, then delete the job of one and restart its operator."""
    first, *others = clusters = [_ClusterWithJob(cluster_id, process) for cluster_id in CLUSTERS]
    for cluster in clusters:
        async with cluster.operator():
            await _until(lambda cluster=cluster: bool(cluster.settings()), "pods")  # type: ignore[misc]
            user = cluster.access().user
            await _until(lambda user=user: user in process.users(), f"the user {user}")  # type: ignore[misc]
    users = {cluster.access().user for cluster in clusters}
    keys = {f"{cluster.access().prefix}status" for cluster in clusters}
    assert len(users) == len(keys) == len(clusters)
    for cluster in clusters:
        cluster.client().hset(f"{cluster.access().prefix}status", "step", "3")
        for other in clusters:
            if other is not cluster:
                with pytest.raises(NoPermissionError):
                    cluster.client().hset(f"{other.access().prefix}status", "step", "4")
    assert set(process.client().keys("*")) == keys

    for gone in (others[0], first, others[1]):
        user, key = gone.access().user, f"{gone.access().prefix}status"
        gone.server.objects["alignmentjobs"].clear()
        async with gone.operator():
            await _until(lambda user=user: user not in process.users(), f"the end of {user}")  # type: ignore[misc]
            await _until(lambda key=key: not process.client().exists(key), f"the end of {key}")  # type: ignore[misc]
        users.remove(user)
        keys.remove(key)
        assert process.users() - {"admin", "default"} == users
        assert set(process.client().keys("*")) == keys


async def test_each_operator_sees_its_own_jobs_only(process: RedisProcess) -> None:
    config, key = RedisConfig.model_validate(process.config), JobKey("team", "sft")
    operators = {cluster_id: PlatformRedis(config, cluster_id) for cluster_id in CLUSTERS}
    try:
        for platform in operators.values():
            await platform.create_user(platform.user_of("1"), "secret", platform.prefix_of(key))
            process.client().hset(f"{platform.prefix_of(key)}status", "step", "3")
        assert process.users() - {"admin", "default"} == {
            "kubealign-1",
            "kubealign.east.1",
            "kubealign.east-1.1",
        }
        for cluster_id, platform in operators.items():
            assert await platform.jobs_with_keys() == {key}
            assert set(await platform.list_users()) == {platform.user_of("1")}
            scanned = [names async for batch in platform.scan_jobs() for names in batch.values()]
            assert scanned == [[f"{key_prefix(cluster_id)}team:sft:status".encode()]]
        await operators["east"].remove_keys(key_prefix("east"))
        assert len(process.client().keys("*")) == len(CLUSTERS) - 1
    finally:
        for platform in operators.values():
            await platform.aclose()


def test_a_dashboards_user_reads_its_own_cluster(process: RedisProcess) -> None:
    """Check the key pattern that the chart and docs/operations.md give to the dashboard's user."""
    for cluster_id in CLUSTERS:
        process.client().set(f"{key_prefix(cluster_id)}team:sft:status", cluster_id)
    for cluster_id in CLUSTERS:
        pattern = prefix_pattern(key_prefix(cluster_id))
        process.client().acl_setuser(
            "board", enabled=True, reset=True, passwords=["+x"], keys=[pattern], commands=["+get"]
        )
        for other in CLUSTERS:
            board = process.client("board", "x")
            if other == cluster_id:
                assert board.get(f"{key_prefix(other)}team:sft:status") == other
            else:
                with pytest.raises(NoPermissionError):
                    board.get(f"{key_prefix(other)}team:sft:status")


async def test_a_dashboard_shows_the_jobs_of_its_own_cluster(process: RedisProcess) -> None:
    ref = JobRef("team", "sft")
    for step, cluster_id in enumerate(CLUSTERS):
        process.client().hset(f"{job_prefix(ref.namespace, ref.name, cluster_id)}status", "step", str(step))
    shown = {}
    for cluster_id in CLUSTERS:
        settings = from_environment(
            {
                "KUBEALIGN_REDIS_HOST": "127.0.0.1",
                "KUBEALIGN_REDIS_PORT": str(process.port),
                "KUBEALIGN_REDIS_USER": "admin",
                "KUBEALIGN_REDIS_PASSWORD_FILE": str(process.password_file),
                "KUBEALIGN_CLUSTER_ID": cluster_id,
            }
        )
        telemetry = telemetry_of(settings)
        summary = await telemetry.summary(ref)
        await telemetry.close()
        shown[cluster_id] = None if summary.progress is None else summary.progress.step
    assert shown == {cluster_id: step for step, cluster_id in enumerate(CLUSTERS)}


@pytest.mark.parametrize("cluster_id", ["East", "a.b", "a:b", "-a", "a-", "a b", "a*", "a" * 41])
def test_ids_that_could_mix_up_clusters_are_refused(tmp_path: Path, cluster_id: str) -> None:
    document: dict[str, Any] = {"platform": {"image": "i", "redisHost": "r", "clusterId": cluster_id}}
    file = tmp_path / "config.yaml"
    file.write_text(json.dumps(document))
    with pytest.raises(ConfigError, match=r"platform\.clusterId"):
        load_config(file)


def test_the_chart_has_the_same_rule() -> None:
    schema = json.loads((Path(__file__).parents[3] / "charts/kubealign/values.schema.json").read_text())
    assert schema["properties"]["clusterId"]["pattern"] == CLUSTER_ID_PATTERN
