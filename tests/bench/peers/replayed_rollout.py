"""Runs rollout workers whose engine replays the timing of a real one: `python -m
tests.bench.peers.replayed_rollout TRACE WORKERS STEPS RESULT`.

Workers, bus, work items, collector and group buffer are real, and each worker is a process; only the engine
is replaced by timed waits. TRACE: the fields of `Trace` as JSON.
"""

import asyncio
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from kubealign.access.certificate_authority import CertificateAuthority, write_tls
from kubealign.local.processes.ports import PortAllocator
from kubealign.local.servers.nats import LocalNatsServer
from kubealign.process_settings import NatsAccess, Role, TlsFiles
from kubealign.spec.sections.rollout import SamplingSpec
from kubealign.v1 import rollout_pb2
from kubealign_services.generation.contract import (
    EngineLoad,
    FinishReason,
    GeneratedSample,
    GenerationRequest,
)
from kubealign_services.messaging.contract import Delivery
from kubealign_services.messaging.jetstream.bus import JetStreamBus
from kubealign_services.messaging.retention_limits import bounds_for
from kubealign_services.roles.driver.rollouts.collector import RolloutCollector
from kubealign_services.roles.driver.rollouts.group_buffer import GroupBuffer, GroupPlan
from kubealign_services.roles.driver.rollouts.prompt_source import ListPrompts
from kubealign_services.roles.driver.rollouts.work_items import to_sampling_proto
from kubealign_services.roles.rollout.weights import FixedWeights
from kubealign_services.roles.rollout.worker import RolloutWorker

_PROMPT = list(range(3, 35))


@dataclass(frozen=True)
class Trace:
    """Recorded samples of an engine, and the steps that request them again.

    capacity: concurrent samples of the engine. finished: tokens and seconds of its samples. samples: samples
    of a prompt. staleness: steps requested ahead. prompts: prompts of a step; None: as many as the workers
    run concurrently. by_prompt: a sample's duration belongs to its prompt, whichever worker takes it;
    otherwise durations are used in the order in which a worker takes samples. static: every worker takes its
    own share of the prompts, instead of pulling from the bus what no other worker has.
    """

    capacity: int
    finished: list[tuple[int, float]]
    samples: int = 4
    staleness: int = 2
    prompts: int | None = None
    by_prompt: bool = False
    static: bool = False

    def prompts_per_step(self, workers: int) -> int:
        return self.prompts or workers * self.capacity // self.samples


class Replayed:
    """The part of a Generator that a rollout worker without refits uses. Samples take their durations and
    token counts from the trace, in turn."""

    def __init__(self, finished: Sequence[tuple[int, float]]) -> None:
        self.load = EngineLoad()
        self._finished, self._next = finished, 0

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[GeneratedSample]:
        """Yield each of the group's samples when its duration has passed."""
        begun = asyncio.get_running_loop().time()
        mine = [self._take(request, sample) for sample in range(len(request.seeds))]
        for sample in sorted(range(len(mine)), key=lambda each: mine[each][1]):
            tokens, seconds = mine[sample]
            # The wait replaces the decoding.
            await asyncio.sleep(max(0.0, begun + seconds - asyncio.get_running_loop().time()))
            yield GeneratedSample(
                request.request_id,
                sample,
                [3] * tokens,
                [-1.0] * tokens,
                [-1.0] * tokens,
                [0] * tokens,
                FinishReason.LENGTH,
                "w0 " * tokens,
                seconds,
            )

    def _take(self, request: GenerationRequest, sample: int) -> tuple[int, float]:
        taken = self._finished[self._next % len(self._finished)]
        self._next += 1
        return taken


class ReplayedByPrompt(Replayed):
    """Replay in which a sample's duration belongs to its prompt."""

    def _take(self, request: GenerationRequest, sample: int) -> tuple[int, float]:
        number = prompt_number(request.request_id.split(":")[2]) * len(request.seeds) + sample
        return self._finished[number % len(self._finished)]


class StaticShare:
    """Bus of one of `workers` workers: it pulls all work items and drops those of other workers' prompts."""

    def __init__(self, bus: JetStreamBus, number: int, workers: int) -> None:
        self._bus, self._number, self._workers = bus, number, workers

    async def pull(self, subject: str, consumer: str, count: int, timeout: float) -> list[Delivery]:
        mine = []
        for delivery in await self._bus.pull(subject, f"{consumer}-{self._number}", count, timeout):
            group_id = rollout_pb2.WorkItem.FromString(delivery.data).group_id
            if prompt_number(group_id) % self._workers == self._number:
                mine.append(delivery)
            else:
                await delivery.ack()
        return mine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bus, name)


def prompt_number(group_id: str) -> int:
    """Return the row of the prompt of a group."""
    return int(group_id.rpartition("/")[2])


class _Prompts(Sequence[Any]):
    """`count` rows with the same prompt."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        return SimpleNamespace(prompt_tokens=_PROMPT, prompt_text="", columns={})


def work(number: int, access: NatsAccess, tls: TlsFiles, trace: Trace, workers: int) -> None:
    """Run a worker until it is killed."""

    async def serve() -> None:
        name, finished = f"rollout-{number}", trace.finished
        bus: Any = await JetStreamBus.connect(access, tls, name=name)
        if trace.static:
            bus = StaticShare(bus, number, workers)
        # Each worker begins at another offset of the trace.
        turned = finished[7 * number % len(finished) :] + finished[: 7 * number % len(finished)]
        generator: Any = ReplayedByPrompt(finished) if trace.by_prompt else Replayed(turned)
        await RolloutWorker(name, bus, generator, FixedWeights(), trace.capacity).run()

    asyncio.run(serve())


async def drive(
    access: NatsAccess, tls: TlsFiles, trace: Trace, workers: int, steps: int
) -> dict[str, float | list[float]]:
    """Request and receive steps; the first steps fill the pipeline."""
    prompts = trace.prompts_per_step(workers)
    plan = GroupPlan(
        job_seed=1,
        prompts_per_step=prompts,
        samples_per_prompt=trace.samples,
        sampling=to_sampling_proto(SamplingSpec(max_tokens=1024)),
        group_timeout=600.0,
        group_retries=0,
        max_failed_groups=0,
        max_staleness=trace.staleness,
    )
    bounds = bounds_for((trace.staleness + 1) * prompts, trace.samples, 1, 1024)
    bus = await JetStreamBus.connect(access, tls, name="driver", bounds=bounds)
    taken: list[tuple[float, int, float]] = []
    async with RolloutCollector(bus, 1, asyncio.Event(), lambda waiting: None) as exchange:
        supply = ListPrompts(_Prompts(prompts * (steps + trace.staleness + 3)), "0")
        buffer = GroupBuffer(exchange, supply, plan, "train", ())
        for _ in range(steps + 2):
            groups = await buffer.take_batch(0)
            tokens = sum(
                (len(rollout.response) // 3) for group in groups for rollout in group.rollouts.values()
            )
            taken.append((time.perf_counter(), tokens, time.process_time()))
    await bus.close()
    measured = taken[1:]
    seconds = measured[-1][0] - measured[0][0]
    return {
        "seconds": seconds,
        "step_seconds": [after[0] - before[0] for before, after in pairwise(measured)],
        "tokens_per_second": sum(tokens for _, tokens, _ in measured[1:]) / seconds,
        "driver_cpu_share": (measured[-1][2] - measured[0][2]) / seconds,
    }


async def _measured(server: LocalNatsServer, tls: TlsFiles, *rest: Any) -> dict[str, float | list[float]]:
    async with asyncio.timeout(60):
        await server.wait_ready()
    return await drive(server.access, tls, *rest)


def main(trace_file: Path, workers: int, steps: int, result: Path) -> None:
    trace = Trace(**json.loads(trace_file.read_text()))
    with tempfile.TemporaryDirectory(prefix="kubealign-bench-nats-") as name:
        folder = Path(name)
        authority = CertificateAuthority.create("bench", timedelta(hours=1))
        tls = {role: write_tls(folder / str(role), authority, role) for role in (Role.DRIVER, Role.ROLLOUT)}
        server_tls = write_tls(folder / "server", authority, Role.RUNNER, ["127.0.0.1"])
        server = LocalNatsServer(
            folder, PortAllocator().allocate(), "bench", "secret-of-the-bench", server_tls
        )
        children: list[Any] = []
        # Forked before anything has a thread: torch is imported once.
        fork = multiprocessing.get_context("fork")
        nats = multiprocessing.get_context("fork").Process(
            target=os.execv, args=(server.command()[0], server.command())
        )
        try:
            nats.start()
            for number in range(workers):
                child = fork.Process(
                    target=work, args=(number, server.access, tls[Role.ROLLOUT], trace, workers), daemon=True
                )
                child.start()
                children.append(child)
            figures = asyncio.run(_measured(server, tls[Role.DRIVER], trace, workers, steps))
        finally:
            for child in (*children, nats):
                if child.pid is not None:
                    child.kill()
                    child.join(20)
    result.write_text(json.dumps(figures))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
