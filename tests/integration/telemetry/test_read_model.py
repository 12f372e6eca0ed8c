"""The read model with a real Redis and the job's own user, and with Redis unreachable."""

import asyncio
import math
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis as AdminClient

from kubealign import read_model as reading
from kubealign.local.servers.redis import LocalRedisServer
from kubealign.process_settings import RedisAccess
from kubealign_services.telemetry import read_model_writer as writing
from kubealign_services.telemetry.heartbeat import Heartbeat
from kubealign_services.telemetry.read_model_writer import MAX_SAMPLES, ReadModelWriter

# By signal: the thread method would leave the servers running.
pytestmark = pytest.mark.timeout(60, method="signal")


class Redis:
    """A Redis server that tests start and kill."""

    def __init__(self, folder: Path, port: int) -> None:
        self.server = LocalRedisServer(folder, port, "kubealign:default:sums:", "secret", "admin-secret")
        self._log = folder / "redis.log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def access(self) -> RedisAccess:
        return self.server.access

    async def start(self) -> None:
        self._launch(self.server.command())
        await asyncio.wait_for(self.server.wait_ready(), 20)

    def _launch(self, command: list[str]) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(timeout=20)
            self._process = None


@pytest.fixture
async def redis(tmp_path: Path, unused_tcp_port: int) -> AsyncIterator[Redis]:
    running = Redis(tmp_path, unused_tcp_port)
    try:
        yield running
    finally:
        running.kill()


async def eventually(check: Callable[[], Awaitable[bool]]) -> None:
    """Poll until Redis shows the expected value, as it sends no event."""
    async with asyncio.timeout(30):
        while not await check():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_written_values_can_be_read(redis: Redis) -> None:
    await redis.start()
    sample = {
        "prompt": "12+34=",
        "response": "40+6=46",
        "reward": 0.75,
        "rewards": {"helpful": 0.75},
        "weight_version": 3,
        "truncated": False,
        "group_id": "0-17",
        "purpose": "train",
        "tokens": ["40", "+6", "=46", ""],
        "token_values": {"logprobs": [-0.5, -1.5, float("nan"), None], "kl": [0.25, 0.0, 0.0, 0.0]},
    }
    async with ReadModelWriter(redis.access) as model:
        model.set_status(
            phase="Running", step=1, max_steps=90, fence=2, weight_version=1, waiting_for="rollouts"
        )
        model.set_status(step=2, started_at=1000.5)
        model.add_metrics(1, 2, {"reward/mean": 0.5})
        model.add_metrics(2, 2, {"reward/mean": 0.75, "kl": float("nan")})
        model.add_sample(2, sample)
        model.set_heartbeat("rollout-0", {"role": "rollout", "running": 5})
    async with reading.ReadModelClient(redis.access) as reader:
        progress = await reader.progress()
        assert progress is not None
        assert (progress.phase, progress.step, progress.max_steps, progress.fence) == ("Running", 2, 90, 2)
        assert (progress.waiting_for, progress.started_at) == ("rollouts", 1000.5)
        assert progress.updated_at > 1.7e9
        first, second = await reader.metrics()
        assert (first.step, first.fence, first.values) == (1, 2, {"reward/mean": 0.5})
        assert (second.step, second.values["reward/mean"]) == (2, 0.75)
        assert math.isnan(second.values["kl"])
        (shown,) = await reader.newest_samples()
        assert (shown.step, shown.response, shown.rewards) == (2, "40+6=46", {"helpful": 0.75})
        assert "".join(shown.tokens) == shown.response
        assert shown.token_values["kl"] == (0.25, 0.0, 0.0, 0.0)
        first_two, third, fourth = shown.token_values["logprobs"][:2], *shown.token_values["logprobs"][2:]
        assert first_two == (-0.5, -1.5)
        assert third is not None and math.isnan(third)
        assert fourth is None
        beats = await reader.heartbeats(["rollout-0", "rollout-1"])
        assert beats == {"rollout-0": {"role": "rollout", "running": 5}}
    assert model.dropped == 0


async def test_responses_of_a_validation_are_those_of_its_last_attempt(
    redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    await redis.start()
    long = [{"group_id": f"val@3/{row}", "prompt": f"p{row}", "response": "x" * 5000} for row in range(9)]
    monkeypatch.setattr(writing, "MAX_MEASUREMENT_SAMPLES", 8)
    monkeypatch.setattr(writing, "MAX_MEASUREMENT_BYTES", 36_000)
    async with ReadModelWriter(redis.access) as model:
        model.add_validation_samples(1, 1, long[:2])
        # A driver stopped while it wrote step 2, and the next one validated the step again.
        model.add_validation_samples(2, 1, long[:1])
        model.add_validation_samples(2, 2, long[:3])
        model.add_validation_samples(3, 2, long)
    async with reading.ReadModelClient(redis.access) as reader:
        counts = {step: len(await reader.validation_documents(step)) for step in range(5)}
        # Responses of step 3 that fit into the bytes of one measurement.
        assert counts == {0: 0, 1: 2, 2: 3, 3: 7, 4: 0}
        assert [document["prompt"] for document in await reader.validation_documents(2)] == ["p0", "p1", "p2"]


async def test_samples_by_position_and_by_step(redis: Redis) -> None:
    await redis.start()
    async with ReadModelWriter(redis.access) as model:
        # One driver reached step 60; the next one rolled back to step 30.
        for version, steps in ((1, range(1, 61)), (2, range(31, 41))):
            for step in steps:
                for index in range(3):
                    model.add_sample(step, {"prompt": f"p{index}", "weight_version": version})
    async with reading.ReadModelClient(redis.access) as reader:
        oldest = await reader.samples(count=4)
        assert [(sample.step, sample.prompt) for sample in oldest] == [
            (1, "p0"),
            (1, "p1"),
            (1, "p2"),
            (2, "p0"),
        ]
        (following,) = await reader.samples(after=oldest[-1].entry, count=1)
        assert (following.step, following.prompt) == (2, "p1")
        newest = await reader.samples(count=2, newest=True)
        assert [(sample.step, sample.prompt) for sample in newest] == [(40, "p2"), (40, "p1")]
        # The last attempt of a repeated step is returned; so are steps that were not repeated.
        for step, version in ((35, 2), (50, 1), (10, 1)):
            samples = await reader.samples(step=step)
            assert [(sample.step, sample.prompt, sample.weight_version) for sample in samples] == [
                (step, f"p{index}", version) for index in range(3)
            ]
        assert await reader.samples(step=61) == []
        assert [sample.prompt for sample in await reader.samples(step=35, count=1, newest=True)] == ["p2"]
        elsewhere = reader.with_prefix("kubealign:default:sums:other:")
        assert await elsewhere.samples() == []
        assert await reader.with_prefix(redis.access.prefix).samples(count=4) == oldest


async def test_fewer_long_samples_are_kept(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "MAX_SAMPLES_BYTES", 64_000)
    await redis.start()
    async with ReadModelWriter(redis.access) as model:
        for step in range(500):
            model.add_sample(step, {"prompt": "p" * 625})
    async with reading.ReadModelClient(redis.access) as reader:
        samples = await reader.newest_samples(500)
        assert samples[0].step == 499
        assert 90 <= len(samples) <= 110


async def test_samples_are_capped_and_heartbeats_expire(redis: Redis) -> None:
    await redis.start()
    async with ReadModelWriter(redis.access) as model:
        for step in range(MAX_SAMPLES + 1500):
            model.add_sample(step, {"prompt": "p"})
        model.set_heartbeat("driver", {})
    async with reading.ReadModelClient(redis.access) as reader:
        samples = await reader.newest_samples(5000)
        assert samples[0].step == MAX_SAMPLES + 1499
        # Redis trims whole nodes of up to 100 entries.
        assert MAX_SAMPLES <= len(samples) <= MAX_SAMPLES + 200
    async with AdminClient(port=redis.access.port, username="admin", password="admin-secret") as admin:
        left = await admin.ttl(redis.access.prefix + "heartbeat:driver")
        assert 0 < left <= 15


async def test_unreachable_redis_delays_nothing(redis: Redis) -> None:
    async with ReadModelWriter(redis.access) as model:
        model.add_metrics(1, 1, {"loss": 1.0})
        model.set_status(phase="Running", step=1)
        await asyncio.sleep(0.3)
        await redis.start()
        async with reading.ReadModelClient(redis.access) as reader:

            async def first_is_there() -> bool:
                return [entry.step for entry in await reader.metrics()] == [1]

            await eventually(first_is_there)
        redis.kill()
        model.add_metrics(2, 1, {"loss": 0.5})
        await asyncio.sleep(0.3)
        await redis.start()
        model.add_metrics(3, 1, {"loss": 0.25})
        async with reading.ReadModelClient(redis.access) as reader:

            async def all_are_there() -> bool:
                return [entry.step for entry in await reader.metrics()][-2:] == [2, 3]

            await eventually(all_are_there)
    assert model.dropped == 0


async def test_dropped_entries_are_counted(redis: Redis, caplog: pytest.LogCaptureFixture) -> None:
    """Check that no exception is raised, the newest entries stay and the shutdown does not wait."""
    async with asyncio.timeout(20):
        async with ReadModelWriter(redis.access) as model:
            for step in range(10_500):
                model.add_metrics(step, 1, {})
            assert model.dropped == 500
        assert model.dropped == 10_500
    assert any("telemetry was dropped" in record.message for record in caplog.records)


async def test_a_wrong_password_is_only_logged(redis: Redis, caplog: pytest.LogCaptureFixture) -> None:
    await redis.start()
    access = redis.access.model_copy(update={"password": "wrong"})
    async with ReadModelWriter(access) as model:
        model.add_metrics(1, 1, {})

        async def logged() -> bool:
            return bool(caplog.records)

        await eventually(logged)
    assert "the read model is unreachable" in caplog.records[0].message


async def test_process_sends_heartbeats(redis: Redis) -> None:
    await redis.start()
    async with ReadModelWriter(redis.access) as model, reading.ReadModelClient(redis.access) as reader:
        heart = Heartbeat(model, "rollout-1", "rollout", period=0.05)
        running = 0
        heartbeat: dict[str, Any] = {}
        heart.set_fields(lambda: {"version": 4, "running": running})
        async with heart.run():
            running = 3

            async def said_so() -> bool:
                heartbeat.update((await reader.heartbeats(["rollout-1"])).get("rollout-1", {}))
                return heartbeat.get("running") == 3

            await eventually(said_so)
    assert (heartbeat["role"], heartbeat["version"]) == ("rollout", 4)
    assert heartbeat["time"] > 1.7e9
