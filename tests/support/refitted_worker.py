"""A rollout worker with a real engine and receiver on an in-memory bus, and the trainer's side of its
refits."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import torch

from kubealign.spec.sections.engines import TorchEngineSpec as EngineSpec
from kubealign.spec.sections.precision import Precision
from kubealign.spec.sections.rollout import InFlightPolicy, WeightTransport
from kubealign.v1 import refit_pb2, rollout_pb2
from kubealign_services.batch.codec import decode
from kubealign_services.generation.torch_engine.engine import TorchRolloutEngine
from kubealign_services.messaging.memory import MemoryBus
from kubealign_services.roles.rollout.generator import SteppedGenerator
from kubealign_services.roles.rollout.worker import RolloutWorker
from kubealign_services.weights.receive.receiver import WeightsReceiver
from kubealign_services.weights.receive.refit_worker import RefitWorker
from kubealign_services.weights.send.publisher import WeightsPublisher
from kubealign_services.weights.verify.canary import Canary
from support.engine_contract.tiny_model import VOCABULARY, plain_logprobs, weights, write_model

SAMPLES = 4


async def nobody(*asked: Any) -> Any:
    raise AssertionError("shared memory is enough here")
    yield


class Paced:
    """Runs the engine's calls one at a time. Steps wait for `may_step`; the function named `stuck` never
    returns."""

    def __init__(self) -> None:
        self.may_step = asyncio.Event()
        self.steps = 0
        self.stuck = ""
        self._turn = asyncio.Lock()

    async def __call__(self, function: Callable[..., Any], *arguments: Any) -> Any:
        if function.__name__ == self.stuck:
            await asyncio.Event().wait()
        if function.__name__ == "_step_engine":
            await self.may_step.wait()
            self.steps += 1
        async with self._turn:
            await asyncio.sleep(0)
            return function(*arguments)

    async def more(self, steps: int) -> None:
        """Allow the current step and `steps` more, then pause again, unless steps were allowed before."""
        until, free = self.steps + steps, self.may_step.is_set()
        self.may_step.set()
        await asyncio.sleep(0)
        while self.steps < until:  # noqa: ASYNC110
            await asyncio.sleep(0)
        if not free:
            self.may_step.clear()


class Stage:
    """One worker, and the trainer's side of its refits."""

    def __init__(self, folder: Path, in_flight: InFlightPolicy, timeout: float = 10.0) -> None:
        self.bus = MemoryBus()
        self.other = self.bus.new_connection()
        self.compute = Paced()
        engine = TorchRolloutEngine.create(write_model(folder), EngineSpec(max_sequences=8))
        self.generator = SteppedGenerator(engine, self.compute)
        self.publisher = WeightsPublisher(folder / "memory", None, WeightTransport.SHARED_MEMORY)
        self.canary = Canary.choose(1, VOCABULARY, [Precision.FLOAT32])
        receiver = WeightsReceiver(folder / "memory", nobody, timeout)
        self.refit = RefitWorker("w", self.bus, receiver, self.generator, timeout, in_flight)
        self.worker = RolloutWorker("w", self.bus, self.generator, self.refit, capacity=8)

    async def announce(
        self,
        version: int,
        wrong: float = 0.0,
        harm: Callable[[refit_pb2.WeightsAnnouncement], None] = lambda announcement: None,
    ) -> refit_pb2.WeightsAnnouncement:
        """Publish and announce a version. wrong: error of the canary's log-probabilities in nats. harm:
        corrupts the written snapshot."""
        tokens = self.canary.tokens
        true = plain_logprobs(version, tokens[:1], tokens[1:])
        announcement = self.publisher.publish(
            fence=1,
            version=version,
            tensors=iter(weights(version).items()),
            canary=self.canary.to_proto([value + wrong for value in true]),
        )
        harm(announcement)
        await self.other.publish("refit", announcement.SerializeToString(), f"refit {version} {wrong}")
        return announcement

    async def acknowledged(self) -> refit_pb2.RefitAcknowledgement:
        """Return the next acknowledgement. A refit waits for the current step, so allow it to end."""
        asked = asyncio.create_task(self.other.pull("refit-acks", "driver", 1, 10.0))
        while not (await asyncio.wait([asked], timeout=0.01))[0]:
            await self.compute.more(0)
        (delivery,) = asked.result()
        await delivery.ack()
        return refit_pb2.RefitAcknowledgement.FromString(delivery.data)

    async def ask(self, group_id: str, tokens: int, min_version: int = 1) -> None:
        item = rollout_pb2.WorkItem(
            fence=1,
            group_id=group_id,
            prompt_tokens=[1, 2, 3],
            samples=SAMPLES,
            seeds=range(SAMPLES),
            sampling=rollout_pb2.Sampling(max_tokens=tokens, min_tokens=tokens, temperature=1.0, top_p=1.0),
            min_version=min_version,
            deadline=time.time() + 60,
            purpose="train",
        )
        await self.other.publish("work", item.SerializeToString(), group_id)

    async def rollouts(self, count: int) -> dict[tuple[str, int], list[int]]:
        """Return (group, sample) -> the weight version of each token."""
        versions: dict[tuple[str, int], list[int]] = {}
        while len(versions) < count:
            for delivery in await self.other.pull("rollouts", "driver", 8, 10.0):
                await delivery.ack()
                rollout = rollout_pb2.Rollout.FromString(delivery.data)
                part = decode(rollout.sequence)
                own = part.token("weight_version")[part.token("loss_mask").bool()]
                versions[rollout.group_id, rollout.sample] = own.tolist()
        return versions

    async def running(self, samples: int) -> None:
        """Wait until `samples` sequences run and have a few tokens each."""
        while self.generator.load.running < samples:
            await self.compute.more(1)
        await self.compute.more(3)


@asynccontextmanager
async def staged(folder: Path, in_flight: InFlightPolicy, timeout: float = 10.0) -> AsyncIterator[Stage]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    stage = Stage(folder, in_flight, timeout)
    parts = (stage.generator.run(), stage.worker.run(), stage.refit.run())
    tasks = [asyncio.create_task(part) for part in parts]
    try:
        await stage.announce(1)
        assert (await stage.acknowledged()).error == ""
        yield stage
        for task in tasks:
            assert not task.done(), "nothing of this ends a worker"
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        stage.publisher.close()
        torch.set_num_threads(threads)
