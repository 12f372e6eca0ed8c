"""Fixtures for the refit protocol: a small language model, its sender and receivers, an in-memory bus."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import torch
from torch import Tensor

from kubealign.spec.sections.precision import Precision
from kubealign.spec.sections.rollout import InFlightPolicy, WeightTransport
from kubealign.v1 import refit_pb2
from kubealign_services.messaging.memory import MemoryBus
from kubealign_services.runtime.rpc.errors import Unreachable
from kubealign_services.weights.announce.coordinator import RefitCoordinator
from kubealign_services.weights.receive.receiver import WeightsReceiver
from kubealign_services.weights.receive.refit_worker import RefitWorker
from kubealign_services.weights.send.publisher import WeightsPublisher
from kubealign_services.weights.verify.canary import Canary

VOCABULARY, WIDTH = 50, 16
ADDRESS = "trainer:1"


class Bigram:
    """log p(next | token) = log_softmax(head @ embed[token])."""

    def __init__(self, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.weights = {
            name: torch.randn(VOCABULARY, WIDTH, generator=generator)
            for name in ("embed.weight", "head.weight")
        }

    def step(self) -> None:
        """Update in place, like an optimiser."""
        for weight in self.weights.values():
            weight.mul_(1.1).add_(0.01)

    def logprobs(self, tokens: list[int]) -> list[float]:
        logits = self.weights["embed.weight"][tokens[:-1]] @ self.weights["head.weight"].T
        chosen: list[float] = logits.log_softmax(-1)[range(len(tokens) - 1), tokens[1:]].tolist()
        return chosen


class Sender:
    """Trainer side: a model and a publisher of its snapshots. `harm` may alter each streamed chunk."""

    def __init__(self, folder: Path, transport: WeightTransport) -> None:
        self.model = Bigram(seed=1)
        self.publisher = WeightsPublisher(folder, ADDRESS, transport)
        self.canary = Canary.choose(5, VOCABULARY, [Precision.FLOAT32])
        self.published: list[int] = []
        self.announcements: list[refit_pb2.WeightsAnnouncement] = []
        self.harm: Callable[[refit_pb2.WeightsChunk], None] = lambda chunk: None
        self.streams = 0

    async def publish(self, fence: int, version: int) -> refit_pb2.WeightsAnnouncement:
        canary = self.canary.to_proto(self.model.logprobs(self.canary.tokens))
        announcement = self.publisher.publish(
            fence=fence, version=version, tensors=iter(self.model.weights.items()), canary=canary
        )
        self.published.append(version)
        self.announcements.append(announcement)
        return announcement

    async def stream(
        self, address: str, request: refit_pb2.FetchWeightsRequest, timeout: float
    ) -> AsyncGenerator[refit_pb2.WeightsChunk]:
        self.streams += 1
        if address != ADDRESS:
            raise Unreachable(f"nobody at {address}")
        for chunk in self.publisher.chunks(request):
            self.harm(chunk)
            yield chunk
            await asyncio.sleep(0)


class Receiver:
    """Worker side: another model, refitted. `before_copy` runs before the weights are copied."""

    def __init__(
        self, name: str, bus: MemoryBus, folder: Path, sender: Sender, timeout: float = 10.0
    ) -> None:
        self.model = Bigram(seed=2)
        self.before_copy: Callable[[], None] = lambda: None
        self.idle = asyncio.Event()
        self.idle.set()
        self.asked_to_drain = asyncio.Event()
        self.refits = 0
        receiver = WeightsReceiver(folder, sender.stream, timeout)
        self.worker = RefitWorker(name, bus, receiver, self, timeout)

    @asynccontextmanager
    async def paused(self, in_flight: InFlightPolicy) -> AsyncIterator[None]:
        self.asked_to_drain.set()
        await self.idle.wait()
        yield

    async def refit(
        self,
        tensors: Iterable[tuple[str, Tensor]],
        version: int,
        in_flight: InFlightPolicy = InFlightPolicy.DRAIN,
    ) -> None:
        self.before_copy()
        self.refits += 1
        received = dict(tensors)
        if received.keys() != self.model.weights.keys():
            raise ValueError(f"the model has {sorted(self.model.weights)}, not {sorted(received)}")
        for name, weight in self.model.weights.items():
            weight.copy_(received[name])

    async def hold_output_until(self, proof: asyncio.Future[None]) -> None:
        await asyncio.shield(proof)

    async def sequence_logprobs(self, tokens: list[int]) -> list[float]:
        return self.model.logprobs(tokens)


class Stage:
    """Resources of one test; everything it starts ends with it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bus = MemoryBus()
        self._tasks: list[asyncio.Task[None]] = []

    def sender(self, transport: WeightTransport = WeightTransport.AUTO) -> Sender:
        return Sender(self.folder, transport)

    def receiver(self, name: str, sender: Sender, timeout: float = 10.0, elsewhere: bool = False) -> Receiver:
        """Start a worker; one on another machine does not see the sender's shared memory."""
        folder = self.folder / "nowhere" if elsewhere else self.folder
        receiver = Receiver(name, self.bus, folder, sender, timeout)
        self._tasks.append(asyncio.create_task(receiver.worker.run()))
        return receiver

    def broadcast(
        self,
        sender: Sender,
        fence: int = 1,
        min_replicas: int = 1,
        replicas: int = 1,
        timeout: float = 10.0,
    ) -> RefitCoordinator:
        return RefitCoordinator(
            self.bus,
            sender.publish,
            fence=fence,
            min_replicas=min_replicas,
            replicas=replicas,
            timeout=timeout,
        )

    async def close(self) -> None:
        await self.bus.close()
        for task in self._tasks:
            task.cancel()
        for result in await asyncio.gather(*self._tasks, return_exceptions=True):
            if isinstance(result, Exception):
                raise result


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    refit_stage = Stage(tmp_path)
    try:
        yield refit_stage
    finally:
        await refit_stage.close()
