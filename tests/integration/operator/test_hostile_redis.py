"""The operator and a real Redis to which one job writes everything that its user can write."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from typing import Any

import pytest
import redis.asyncio
from redis.exceptions import RedisError

from cluster.support.redis_process import RedisProcess
from kubealign_operator import names
from kubealign_operator.controller.background import run_supervised
from kubealign_operator.controller.config import RedisConfig, RedisQuota
from kubealign_operator.controller.kube.ownership import JobKey
from kubealign_operator.controller.metrics import OperatorMetrics
from kubealign_operator.controller.platform_redis.progress import ProgressReader
from kubealign_operator.controller.platform_redis.quota import RedisQuotaGuard
from kubealign_operator.controller.platform_redis.server import PlatformRedis
from kubealign_operator.controller.platform_redis.users import RedisUserSync
from kubealign_operator.controller.state.cache import JobStore
from support.redis_programs import PROGRAMS
from support.rendering.jobs import sft

pytestmark = pytest.mark.timeout(120, method="signal")

_MIB = 2**20
_EVIL, _GOOD = JobKey("evil", "evil"), JobKey("good", "good")


@pytest.fixture(scope="module", params=PROGRAMS)
def process(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RedisProcess]:
    with RedisProcess(tmp_path_factory.mktemp("redis"), request.param()) as running:
        yield running


@pytest.fixture
async def platform(process: RedisProcess) -> AsyncIterator[PlatformRedis]:
    """Connection of the operator to an empty Redis."""
    process.client().flushall()
    for user in process.users() - {"admin", "default"}:
        process.client().acl_deluser(user)
    connection = PlatformRedis(RedisConfig.model_validate(process.config))
    yield connection
    await connection.aclose()


def _prefix(key: JobKey) -> str:
    return names.redis_prefix(key.namespace, key.name)


def _jobs(*keys: JobKey) -> JobStore:
    """Return the cache with running jobs; the uid of a job is uid-NAME."""
    jobs = JobStore(lambda key: None)
    for key in keys:
        resource = sft()
        resource["metadata"] |= {
            "namespace": key.namespace,
            "name": key.name,
            "uid": f"uid-{key.name}",
            "resourceVersion": "1",
        }
        resource["status"] = {"phase": "Running"}
        jobs.put(resource)
    return jobs


async def _tenant(platform: PlatformRedis, process: RedisProcess, key: JobKey) -> redis.asyncio.Redis:
    """Create a job's user as the operator does, and return its client."""
    user = names.redis_user(f"uid-{key.name}")
    await platform.create_user(user, "secret", _prefix(key))
    return redis.asyncio.Redis(port=process.port, username=user, password="secret", protocol=2)


async def _report(tenant: redis.asyncio.Redis, key: JobKey, step: int) -> None:
    prefix = _prefix(key)
    await tenant.hset(f"{prefix}status", mapping={"step": step, "max_steps": 10})
    await tenant.xadd(f"{prefix}metrics", {"step": step, "json": '{"reward/mean": 0.25}'})


# Each writes to the job's own keys with the job's own user.
_ATTACKS: dict[str, Any] = {
    "field-not-utf-8": lambda tenant, prefix: tenant.hset(f"{prefix}status", "step", b"\xff"),
    "field-name-not-utf-8": lambda tenant, prefix: tenant.hset(f"{prefix}status", b"\xff", "1"),
    "infinite-step": lambda tenant, prefix: tenant.hset(f"{prefix}status", "step", "inf"),
    "giant-step": lambda tenant, prefix: tenant.hset(f"{prefix}status", "step", "1e300"),
    "large-field": lambda tenant, prefix: tenant.hset(f"{prefix}status", "waiting_for", b"x" * 20 * _MIB),
    "many-fields": lambda tenant, prefix: tenant.hset(
        f"{prefix}status", mapping={str(number): "" for number in range(50_000)}
    ),
    "status-of-another-type": lambda tenant, prefix: tenant.set(f"{prefix}status", "x"),
    "metrics-of-another-type": lambda tenant, prefix: tenant.set(f"{prefix}metrics", "x"),
    "deep-json": lambda tenant, prefix: tenant.xadd(f"{prefix}metrics", {"json": "[" * 100_000}),
    "json-not-utf-8": lambda tenant, prefix: tenant.xadd(f"{prefix}metrics", {"json": b"\xff"}),
    "large-json": lambda tenant, prefix: tenant.xadd(f"{prefix}metrics", {"json": b"x" * 20 * _MIB}),
    "entry-without-json": lambda tenant, prefix: tenant.xadd(f"{prefix}metrics", {b"\xff": b"\xff"}),
    "many-entry-fields": lambda tenant, prefix: tenant.xadd(
        f"{prefix}metrics", {str(number): "" for number in range(50_000)}
    ),
    "key-not-utf-8": lambda tenant, prefix: tenant.set(prefix.encode() + b"\xff", "1"),
    "key-with-glob": lambda tenant, prefix: tenant.set(f"{prefix}[*?\\", "1"),
    "long-key": lambda tenant, prefix: tenant.set(prefix.encode() + b"k" * 5 * _MIB, "1"),
}


@pytest.mark.parametrize("attack", _ATTACKS)
async def test_a_bad_key_costs_its_own_job_the_metrics(
    platform: PlatformRedis, process: RedisProcess, attack: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Check progress, user synchronisation and removal of keys while a job writes what no driver writes."""
    jobs, changed = _jobs(_EVIL, _GOOD), []
    evil = await _tenant(platform, process, _EVIL)
    good = await _tenant(platform, process, _GOOD)
    await _ATTACKS[attack](evil, _prefix(_EVIL))
    await _report(good, _GOOD, 3)

    reader = ProgressReader(platform, jobs, changed.append, 60)
    await reader.poll()
    progress = reader.get("uid-good")
    assert progress is not None
    assert (progress.step, progress.max_steps, progress.reward) == (3, 10, 0.25)
    assert _GOOD in changed
    # A job's last progress is read by itself.
    await reader.refresh(_EVIL, "uid-evil")
    own = reader.get("uid-evil")
    assert own is None or own.step is None
    if attack in ("large-field", "large-json", "many-entry-fields"):
        assert any("exceeds 524288 bytes" in record.message for record in caplog.records)

    assert await platform.jobs_with_keys() == {_EVIL, _GOOD}
    sync = RedisUserSync(platform, _NoSecrets(), jobs, OperatorMetrics(), ())  # type: ignore[arg-type]
    await sync.reconcile()
    # The job is deleted: nothing that it has stored remains.
    jobs.remove(jobs.get(_EVIL).resource)
    await sync.reconcile()
    assert await platform.jobs_with_keys() == {_GOOD}
    assert len(process.client().keys("*")) == 2
    assert names.redis_user("uid-evil") not in process.users()
    await evil.aclose()
    await good.aclose()


class _NoSecrets:
    """API of a cluster whose Secrets need not be read."""

    async def get(self, path: str) -> Any:
        raise AssertionError(f"{path} was read although the users are current")


async def test_a_job_that_cannot_be_read_is_read_again_later(
    platform: PlatformRedis, process: RedisProcess, caplog: pytest.LogCaptureFixture
) -> None:
    reader = ProgressReader(platform, _jobs(_EVIL), lambda key: None, 60)
    evil = await _tenant(platform, process, _EVIL)
    await evil.set(f"{_prefix(_EVIL)}status", "x")
    await reader.poll()
    await reader.poll()
    [record] = [record for record in caplog.records if "cannot be read" in record.message]
    assert "kubealign:evil:evil:status: WRONGTYPE" in record.message
    await platform.remove_keys(_prefix(_EVIL))
    await _report(evil, _EVIL, 4)
    reader._retry_at["uid-evil"] = 0.0
    await reader.poll()
    assert reader.get("uid-evil").step == 4  # type: ignore[union-attr]
    await evil.aclose()


async def test_the_users_of_an_earlier_version_are_made_anew(
    platform: PlatformRedis, process: RedisProcess
) -> None:
    user, prefix = names.redis_user("uid-good"), _prefix(_GOOD)
    process.client().execute_command(
        "ACL SETUSER", user, "reset", "on", ">secret", f"~{prefix}*", "+@all", "-@admin", "-@dangerous"
    )
    before = (await platform.list_users())[user]
    assert (before.pattern, before.has_current_rules) == (f"{prefix}*", False)
    await platform.create_user(user, "secret", prefix)
    after = (await platform.list_users())[user]
    assert (after.pattern, after.has_current_rules) == (f"{prefix}*", True)


async def test_a_job_over_the_quota_loses_its_metrics(platform: PlatformRedis, process: RedisProcess) -> None:
    jobs, events = _jobs(_EVIL, _GOOD), []
    evil = await _tenant(platform, process, _EVIL)
    good = await _tenant(platform, process, _GOOD)
    await _report(good, _GOOD, 3)
    sync = RedisUserSync(platform, _NoSecrets(), jobs, OperatorMetrics(), ())  # type: ignore[arg-type]
    guard = RedisQuotaGuard(
        platform,
        jobs,
        sync,
        lambda job, announced: events.extend((job["metadata"]["name"], event) for event in announced),
        RedisQuota(max_keys=100, max_bytes=4 * _MIB),
    )
    await guard.check()
    assert not events
    prefix = _prefix(_EVIL)
    # One large element among small ones: an estimate by samples misses it.
    await evil.hset(
        f"{prefix}status", mapping={str(number): "x" for number in range(1000)} | {"y": b"y" * 8 * _MIB}
    )
    await guard.check()
    [(name, event)] = events
    assert (name, event.type, event.reason) == ("evil", "Warning", "MetricsRemoved")
    assert await platform.jobs_with_keys() == {_GOOD}
    await guard.check()
    assert len(events) == 1

    # Over the quota in two checks in a row: the job writes no more.
    for _ in range(2):
        for number in range(101):
            await evil.set(f"{prefix}{number}", "x")
        await guard.check()
    assert len(events) == 3
    assert "stores no more metrics" in events[-1][1].message
    with pytest.raises(RedisError):
        await evil.set(f"{prefix}1", "x")
    await sync.reconcile()
    assert names.redis_user("uid-evil") not in process.users()
    assert names.redis_user("uid-good") in process.users()
    assert await platform.jobs_with_keys() == {_GOOD}
    await evil.aclose()
    await good.aclose()


async def test_a_failing_task_is_counted_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kubealign_operator.controller.background._INITIAL_BACKOFF_SECONDS", 0.01)
    metrics, runs = OperatorMetrics(), 0
    recovered = asyncio.Event()

    async def run() -> None:
        nonlocal runs
        runs += 1
        if runs <= 2:
            raise (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"), RecursionError())[runs - 1]
        recovered.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(run_supervised("redis-progress", run, metrics))
    async with asyncio.timeout(20):
        await recovered.wait()
    assert not task.done()
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    assert b'kubealign_operator_background_failures_total{task="redis-progress"} 2.0' in metrics.render()
