"""Adapter refits over the network, from the real trainer to engines that join early, late and again."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from kubealign.spec.sections import engines as engine_spec
from kubealign.spec.sections.precision import Precision
from kubealign.spec.sections.rollout import WeightTransport
from kubealign.spec.sections.training import (
    AdamW,
    BaseQuantization,
    Lora,
    Nf4Quantization,
    Optimizer,
    Trainer,
)
from kubealign.v1 import refit_pb2, training_pb2
from kubealign_services.batch.codec import encode
from kubealign_services.batch.packed import pack
from kubealign_services.data.models.model_builder import build_model
from kubealign_services.data.tokenization.tokenizers import train_character_tokenizer
from kubealign_services.generation.torch_engine.engine import TorchRolloutEngine
from kubealign_services.messaging.memory import MemoryBus
from kubealign_services.roles.rollout.generator import SteppedGenerator
from kubealign_services.roles.rollout.weights import BASE_VERSION, read_folder_weights
from kubealign_services.roles.trainer.reference import AdapterOffLogprobsCommand
from kubealign_services.roles.trainer.weight_publication import PublishWeightsCommand
from kubealign_services.training.commands.command_executor import StepPlan, TrainingCore
from kubealign_services.training.contract import Head
from kubealign_services.training.torch_backend.backend import TorchTrainingBackend
from kubealign_services.weights.announce.coordinator import RefitCoordinator
from kubealign_services.weights.receive.receiver import WeightsReceiver
from kubealign_services.weights.receive.refit_worker import RefitWorker
from kubealign_services.weights.send.publisher import WeightsPublisher
from kubealign_services.weights.verify.canary import Canary
from support.mean_negative_logprob import MeanNegativeLogprob
from support.tiny_jobs import ARCHITECTURE

pytestmark = pytest.mark.timeout(120)

LETTERS = "abcdefghijklmnop"
#: Rows of whole blocks of quantised weights, large enough that their rounding shows.
WIDE = ARCHITECTURE | {"hidden_size": 64, "intermediate_size": 128, "initializer_range": 0.1}


class Site:
    """A trainer with or without an adapter, its publisher, and a bus."""

    def __init__(self, folder: Path, lora: Lora | None) -> None:
        self.model = folder / "model"
        quantised = lora is not None and lora.quantization is not None
        if not self.model.is_dir():
            architecture = WIDE if quantised else ARCHITECTURE
            build_model(architecture, train_character_tokenizer([LETTERS]), 1, self.model, "")
        rate = 1e-2 if quantised else 3e-2
        self.spec = spec = Trainer(lora=lora, optimizer=Optimizer(adam_w=AdamW(learning_rate=rate)))
        self.core = TrainingCore(
            lambda: TorchTrainingBackend.create(self.model, Head.LANGUAGE_MODEL, spec, total_updates=9),
            MeanNegativeLogprob(),
            StepPlan(1, None),
            seed=1,
            role="trainer",
            world_size=1,
        )
        self.core.load(training_pb2.LoadRequest(fence=1))
        self.shared = folder / "shared"
        self.publisher = WeightsPublisher(self.shared, None, WeightTransport.SHARED_MEMORY)
        canary = Canary.choose(1, len(LETTERS), [Precision.FLOAT32])
        self.command = PublishWeightsCommand(self.core, canary, self.publisher)
        self.bus = MemoryBus()
        self._threads = ThreadPoolExecutor(1)

    async def publish(self, fence: int, version: int) -> refit_pb2.WeightsAnnouncement:
        return self.command(refit_pb2.PublishWeightsRequest(fence=fence, version=version))

    def train(self, step: int) -> None:
        tokens = torch.randint(3, 19, (8, 12), generator=torch.Generator().manual_seed(step)).tolist()
        batch = encode(pack(tokens, [str(index) for index in range(8)]))
        self.core.train_step(training_pb2.TrainStepRequest(fence=1, step=step, update=True, batch=batch))

    def logprobs(self, tokens: list[int]) -> list[float]:
        values = self.core.backend.forward(pack([tokens], ["one"]), frozenset({"logprobs"}))["logprobs"]
        return [float(value) for value in values[1:]]

    def broadcast(self, replicas: int = 1) -> RefitCoordinator:
        return RefitCoordinator(
            self.bus, self.publish, fence=1, min_replicas=replicas, replicas=replicas, timeout=30
        )

    @asynccontextmanager
    async def worker(
        self, name: str, base: bool = True
    ) -> AsyncGenerator[tuple[RefitWorker, TorchRolloutEngine]]:
        engine = TorchRolloutEngine.create(self.model, engine_spec.TorchEngineSpec(max_sequences=4))
        if base:
            engine.refit(read_folder_weights(self.model, self.spec), BASE_VERSION)

        def compute(call: Callable[..., Any], *arguments: Any) -> Awaitable[Any]:
            return asyncio.get_running_loop().run_in_executor(self._threads, call, *arguments)

        receiver = WeightsReceiver(self.shared, None, timeout=30)  # type: ignore[arg-type]
        worker = RefitWorker(name, self.bus, receiver, SteppedGenerator(engine, compute), timeout=30)
        running = asyncio.create_task(worker.run())
        try:
            yield worker, engine
        finally:
            running.cancel()
            await asyncio.wait({running})

    async def close(self) -> None:
        await self.bus.close()
        self.publisher.close()
        self._threads.shutdown()


@pytest.mark.parametrize(
    "lora",
    [
        Lora(rank=2, alpha=8),
        Lora(rank=2, alpha=8, dora=True),
        Lora(rank=2, alpha=8, quantization=BaseQuantization(nf4=Nf4Quantization())),
    ],
    ids=["lora", "dora", "nf4"],
)
async def test_only_the_adapter_is_transferred_and_all_engines_agree(lora: Lora, tmp_path: Path) -> None:
    """Check that an early worker, a late one, and one that recovers from a failure agree with the trainer."""
    site = Site(tmp_path, lora)
    probe = list(range(3, 15))
    async with AsyncExitStack() as stack:
        stack.push_async_callback(site.close)
        first, engine = await stack.enter_async_context(site.worker("rollout-0"))
        broadcast = await stack.enter_async_context(site.broadcast())
        base = site.logprobs(probe)
        for version in range(4):
            await broadcast.publish(version)
            await first.wait_for_version(1, version, timeout=10)
            assert engine.sequence_logprobs(probe) == pytest.approx(site.logprobs(probe), abs=2e-5)
            site.train(version + 1)
        report = await broadcast.wait_current()
        assert report is not None
        figures = report.metrics()
        assert figures["refit/canary_gap"] < 1e-4
        # The previous weights would have failed the check.
        assert site.logprobs(probe) != pytest.approx(base, abs=1e-2)

        async with site.worker("rollout-1") as (late, theirs):
            await late.wait_for_version(1, 3, timeout=10)
            assert theirs.sequence_logprobs(probe) == engine.sequence_logprobs(probe)
        # A missing or wrong base is reported by the engine or the canary; a later version repairs the worker.
        async with site.worker("rollout-2", base=False) as (lame, theirs):
            await asyncio.wait_for(_quarantine(lame), 10)
            assert "before the weights that it is an adapter to" in lame.quarantine_reason
            if lora.quantization is None:
                theirs.refit(read_folder_weights(site.model), BASE_VERSION)
                with torch.no_grad():
                    next(theirs._runner.model.module.parameters()).mul_(0.9)
            else:
                # The weights before their quantisation are another base.
                theirs.refit(read_folder_weights(site.model), BASE_VERSION)
            await broadcast.publish(4)
            await asyncio.wait_for(_cause(lame, "canary"), 10)
            theirs.refit(read_folder_weights(site.model, site.spec), BASE_VERSION)
            site.train(5)
            await broadcast.publish(5)
            # A quorum has taken the version; this worker may still be refitting.
            await asyncio.wait_for(lame.wait_until_released(), 10)
            await lame.wait_for_version(1, 5, timeout=10)
            await first.wait_for_version(1, 5, timeout=10)
            assert theirs.sequence_logprobs(probe) == engine.sequence_logprobs(probe)

        announcement = await site.publish(1, 6)
        assert announcement.adapter.scale == 4.0
        dense = sum(tensor.numel() * 4 for _, tensor in site.core.backend.snapshot())
        # Rank 2 in matrices of 32 to 64: an eighth of all weights.
        assert announcement.size_bytes < 0.2 * dense and figures["refit/bytes"] == announcement.size_bytes

        # The reference is the model without its adapter: the first weights, bit for bit.
        batch = pack([probe], ["probe"])
        request = training_pb2.ForwardRequest(fence=1, batch=encode(batch), outputs=["logprobs"])
        reply = AdapterOffLogprobsCommand(site.core)(request)
        untrained = Trainer() if lora.quantization is None else site.spec
        fresh = TorchTrainingBackend.create(site.model, Head.LANGUAGE_MODEL, untrained, total_updates=1)
        expected = fresh.forward(batch, frozenset({"logprobs"}))["logprobs"]
        assert reply.columns and torch.equal(_logprobs(reply), expected)


def _logprobs(reply: training_pb2.ForwardReply) -> torch.Tensor:
    from kubealign_services.batch.codec import decode_columns

    return decode_columns(reply.columns, reply.digest)["token.logprobs"]


async def _quarantine(worker: RefitWorker) -> None:
    while not worker.quarantined:
        async with worker._condition:
            await worker._condition.wait()


async def _cause(worker: RefitWorker, word: str) -> None:
    while word not in worker.quarantine_reason:
        async with worker._condition:
            await worker._condition.wait()
