"""Scores a backlog of samples with replicas of a reward function that waits: `python -m
tests.bench.peers.reward_pool REPLICAS SAMPLES SECONDS RESULT`.

NATS, score workers, scorers and function processes are real, and each replica is a process; only the driver
is replaced by a program that publishes the samples and counts their scores. SAMPLES: of each replica.
SECONDS: duration of a sample.
"""

import asyncio
import json
import multiprocessing
import os
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from kubealign.access.certificate_authority import CertificateAuthority, write_tls
from kubealign.local.processes.ports import PortAllocator
from kubealign.local.servers.nats import LocalNatsServer
from kubealign.process_settings import NatsAccess, Role, TlsFiles
from kubealign.spec.sections.rewards import RewardFunction
from kubealign.v1 import batch_pb2, rollout_pb2, scoring_pb2
from kubealign_services.messaging.jetstream.bus import JetStreamBus
from kubealign_services.messaging.retention_limits import bounds_for
from kubealign_services.roles.reward.function_scorer import FunctionScorer
from kubealign_services.scoring.functions.function_reward import FunctionReward
from kubealign_services.scoring.purposes import TRAINING
from kubealign_services.scoring.serving import pull_count
from kubealign_services.scoring.worker import ScoreWorker

_NAME = "waits"
_COLUMNS = b'{"prompt": "p", "columns": {}}'
_FENCE = 1
_TIMEOUT_SECONDS = 600.0
#: The wait replaces the computation of a sample; a call takes as long as all its samples.
_FUNCTION = """
import asyncio

async def reward(prompts, responses):
    for _ in responses:
        await asyncio.sleep({seconds!r})
    return [float(len(response)) for response in responses]
"""


def work(number: int, access: NatsAccess, tls: TlsFiles, file: Path, replicas: int) -> None:
    """Run a replica until it is killed."""

    async def serve() -> None:
        name = f"reward-{_NAME}-{number}"
        bus = await JetStreamBus.connect(access, tls, name=name)
        spec = RewardFunction.model_validate({"file": {"path": str(file)}})
        async with FunctionReward(spec, _TIMEOUT_SECONDS, _NAME) as function:
            scorer = FunctionScorer(_NAME, name, function)
            count = pull_count(replicas)
            await ScoreWorker(bus, f"reward-{_NAME}", frozenset({TRAINING}), scorer, count).run()

    asyncio.run(serve())


class Driver:
    """Publishes samples and receives their scores."""

    def __init__(self, bus: JetStreamBus) -> None:
        self._bus = bus
        self._published = 0

    async def publish(self, count: int) -> None:
        """Publish `count` samples, all at the same time."""
        numbers = range(self._published, self._published + count)
        self._published += count
        await asyncio.gather(*(self._publish(number) for number in numbers))

    async def receive(self, count: int) -> list[scoring_pb2.Score]:
        """Return the next `count` scores."""
        scores: list[scoring_pb2.Score] = []
        async with asyncio.timeout(_TIMEOUT_SECONDS):
            while len(scores) < count:
                for delivery in await self._bus.pull("scores", "driver", 64, 5.0):
                    scores.append(scoring_pb2.Score.FromString(delivery.data))
                    await delivery.ack()
        return scores

    async def _publish(self, number: int) -> None:
        rollout = rollout_pb2.Rollout(
            fence=_FENCE,
            group_id=f"0/{number}",
            sequence=batch_pb2.PackedBatch(digest=str(number)),
            columns=_COLUMNS,
            purpose=TRAINING,
            response="four",
        )
        await self._bus.publish("rollouts", rollout.SerializeToString(), str(number))


async def measure(
    server: LocalNatsServer, tls: TlsFiles, replicas: int, samples: int
) -> dict[str, float | dict[str, int]]:
    """Return the samples per second of the pool, its busy share, and the samples of each replica."""
    async with asyncio.timeout(60):
        await server.wait_ready()
    bounds = bounds_for(replicas * samples, 1, 1, 64)
    bus = await JetStreamBus.connect(server.access, tls, name="driver", bounds=bounds)
    driver, ready = Driver(bus), set[str]()
    # Each replica has imported its function once it has returned a score.
    while len(ready) < replicas:
        await driver.publish(replicas)
        ready |= {score.worker for score in await driver.receive(replicas)}
    begun = time.perf_counter()
    await driver.publish(replicas * samples)
    scores = await driver.receive(replicas * samples)
    seconds = time.perf_counter() - begun
    if {score.reward for score in scores} != {4.0}:
        raise AssertionError("a sample has another score than its function's")
    await bus.close()
    workers = [score.worker for score in scores]
    return {
        "seconds": seconds,
        "samples_per_second": len(scores) / seconds,
        # Share of the time that the replicas spent in calls of their functions.
        "busy_share": sum(score.seconds for score in scores) / (replicas * seconds),
        "samples": {worker: workers.count(worker) for worker in sorted(set(workers))},
    }


def main(replicas: int, samples: int, seconds: float, result: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="kubealign-bench-rewards-") as name:
        folder = Path(name)
        file = folder / "waits.py"
        file.write_text(_FUNCTION.format(seconds=seconds))
        authority = CertificateAuthority.create("bench", timedelta(hours=1))
        tls = {role: write_tls(folder / str(role), authority, role) for role in (Role.DRIVER, Role.REWARD)}
        server_tls = write_tls(folder / "server", authority, Role.RUNNER, ["127.0.0.1"])
        server = LocalNatsServer(
            folder, PortAllocator().allocate(), "bench", "secret-of-the-bench", server_tls
        )
        children: list[Any] = []
        # Forked before anything has a thread: the libraries are imported once.
        fork = multiprocessing.get_context("fork")
        nats = fork.Process(target=os.execv, args=(server.command()[0], server.command()))
        try:
            nats.start()
            for number in range(replicas):
                arguments = (number, server.access, tls[Role.REWARD], file, replicas)
                child = fork.Process(target=work, args=arguments, daemon=True)
                child.start()
                children.append(child)
            figures = asyncio.run(measure(server, tls[Role.DRIVER], replicas, samples))
        finally:
            for child in (*children, nats):
                if child.pid is not None:
                    child.kill()
                    child.join(20)
    result.write_text(json.dumps(figures))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), Path(sys.argv[4]))
