"""The real trainer and engine compute the same log-probabilities after every refit, by both transports."""

# mypy: disable-error-code="no-untyped-call"
import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast

from kubealign.access.certificate_authority import CertificateAuthority, write_tls
from kubealign.process_settings import Role
from kubealign.spec.sections import engines as engine_spec
from kubealign.spec.sections.precision import Precision
from kubealign.spec.sections.rollout import WeightTransport
from kubealign.spec.sections.training import AdamW, Backend, Optimizer, Trainer
from kubealign.spec.sections.training import TorchBackendSpec as TorchSpec
from kubealign.v1 import refit_pb2
from kubealign_services.batch.packed import pack
from kubealign_services.generation.contract import GenerationRequest, SamplingParameters
from kubealign_services.generation.torch_engine.engine import TorchRolloutEngine
from kubealign_services.messaging.memory import MemoryBus
from kubealign_services.roles.rollout.generator import SteppedGenerator
from kubealign_services.runtime.rpc.server import RpcServer
from kubealign_services.training.contract import Head, UpdatePlan
from kubealign_services.training.torch_backend.backend import TorchTrainingBackend
from kubealign_services.weights.announce.coordinator import RefitCoordinator
from kubealign_services.weights.receive.receiver import WeightsReceiver
from kubealign_services.weights.receive.refit_worker import RefitWorker
from kubealign_services.weights.send.publisher import WeightsPublisher
from kubealign_services.weights.send.servicer import WeightsSenderServicer
from kubealign_services.weights.transfer.stream.peer_streams import PeerStreams
from kubealign_services.weights.verify.canary import Canary
from support.mean_negative_logprob import MeanNegativeLogprob

pytestmark = pytest.mark.timeout(120)

TOKENS = 40
STEPS = 10


def make_model(folder: Path, tied: bool) -> None:
    """Write a Llama of two layers with a tokenizer of one character per token."""
    vocabulary = {chr(48 + token): token for token in range(TOKENS - 1)} | {"<eos>": TOKENS - 1}
    raw = Tokenizer(models.WordLevel(vocabulary, unk_token="0"))
    raw.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    make: Callable[..., PreTrainedTokenizerFast] = PreTrainedTokenizerFast
    make(tokenizer_object=raw, eos_token="<eos>", pad_token="<eos>").save_pretrained(folder)
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=TOKENS,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        initializer_range=0.3,
        tie_word_embeddings=tied,
        eos_token_id=TOKENS - 1,
        pad_token_id=TOKENS - 1,
        bos_token_id=None,
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)


@asynccontextmanager
async def generating(engine: TorchRolloutEngine) -> AsyncGenerator[SteppedGenerator]:
    """Return a generator whose thread is the only one that may call the engine."""
    with ThreadPoolExecutor(1) as thread:

        def compute(call: Callable[..., Any], *arguments: Any) -> Awaitable[Any]:
            return asyncio.get_running_loop().run_in_executor(thread, call, *arguments)

        generator = SteppedGenerator(engine, compute)
        running = asyncio.create_task(generator.run())
        try:
            yield generator
        finally:
            running.cancel()
            await asyncio.wait({running})


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("transport", [WeightTransport.SHARED_MEMORY, WeightTransport.STREAM])
async def test_trainer_and_engine_agree_after_every_refit(
    tmp_path: Path, transport: WeightTransport, tied: bool
) -> None:
    folder = tmp_path / "model"
    make_model(folder, tied)
    torch_spec = TorchSpec(microbatch_tokens=256)
    trainer = Trainer(
        backend=Backend(torch=torch_spec), optimizer=Optimizer(adam_w=AdamW(learning_rate=1e-2))
    )
    backend = TorchTrainingBackend.create(folder, Head.LANGUAGE_MODEL, trainer, total_updates=STEPS)
    engine = TorchRolloutEngine.create(folder, engine_spec.TorchEngineSpec(max_sequences=4))
    canary = Canary.choose(1, TOKENS, [Precision.FLOAT32])
    authority = CertificateAuthority.create("refit-logprobs", timedelta(hours=1))
    tls = {role: write_tls(tmp_path / role, authority, role) for role in (Role.TRAINER, Role.ROLLOUT)}
    bus = MemoryBus()

    def trainer_logprobs(tokens: list[int]) -> list[float]:
        logprobs = backend.forward(pack([tokens], ["one"]), frozenset({"logprobs"}))["logprobs"]
        after_first: list[float] = logprobs[1:].tolist()
        return after_first

    async def publish(fence: int, version: int) -> refit_pb2.WeightsAnnouncement:
        message = canary.to_proto(trainer_logprobs(canary.tokens))
        return publisher.publish(fence=fence, version=version, tensors=backend.snapshot(), canary=message)

    publisher = WeightsPublisher(tmp_path / "shared", "localhost:0", transport)
    server = RpcServer(
        "localhost:0", tls[Role.TRAINER], [WeightsSenderServicer(publisher)], lambda *seen: None, grace=1.0
    )
    async with server, PeerStreams(tls[Role.ROLLOUT]) as streams, generating(engine) as generator:
        # The port is known once the server listens.
        publisher._address = server.address
        receiver = WeightsReceiver(tmp_path / "shared", streams, timeout=30)
        worker = RefitWorker("rollout-0", bus, receiver, generator, timeout=30)
        refitting = asyncio.create_task(worker.run())
        broadcast = RefitCoordinator(bus, publish, fence=1, min_replicas=1, replicas=1, timeout=30)
        generator_of_data = torch.Generator().manual_seed(4)
        async with broadcast:
            versions = []
            for step in range(STEPS):
                await broadcast.publish(step)
                await worker.wait_for_version(1, step, timeout=10)
                sampling = SamplingParameters(max_tokens=12)
                request = GenerationRequest(f"step-{step}", (5, 6, 7), (1, 2), sampling)
                async for sample in generator.generate(request):
                    expected = trainer_logprobs([5, 6, 7, *sample.tokens])[2:]
                    pairs = zip(sample.engine_logprobs, expected, strict=True)
                    assert max(abs(ours - theirs) for ours, theirs in pairs) < 1e-4
                    versions += sample.versions[:1]
                data = torch.randint(TOKENS, (8, 12), generator=generator_of_data).tolist()
                batch = pack(data, [str(index) for index in range(8)])
                before = trainer_logprobs(canary.tokens)
                backend.train_step(batch, MeanNegativeLogprob(), UpdatePlan(1, 8, seed=step))
                # The step is large enough that the previous weights would fail the check.
                moved = zip(before, trainer_logprobs(canary.tokens), strict=True)
                assert max(abs(then - now) for then, now in moved) > 0.01
            assert versions == [step for step in range(STEPS) for _ in range(2)]
            report = await broadcast.wait_current()
            assert report is not None
            figures = report.metrics()
            used = "shared_memory" if transport is WeightTransport.SHARED_MEMORY else "stream"
            assert figures[f"refit/{used}_workers"] == 1
        await bus.close()
        await asyncio.wait_for(refitting, 10)
    publisher.close()
