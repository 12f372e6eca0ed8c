"""Log-probabilities of the responses that a work item gives."""

import asyncio
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from kubealign.spec.sections.engines import TorchEngineSpec as EngineSpec
from kubealign.v1 import rollout_pb2
from kubealign_services.batch.codec import decode
from kubealign_services.checkpoints.fence import StaleFence
from kubealign_services.data.models.model_builder import build_model
from kubealign_services.data.tokenization.tokenizers import train_character_tokenizer
from kubealign_services.generation.torch_engine.engine import TorchRolloutEngine
from kubealign_services.messaging.memory import MemoryBus
from kubealign_services.roles.rollout.generator import SteppedGenerator
from kubealign_services.roles.rollout.weights import BASE_VERSION, FixedWeights, read_folder_weights
from kubealign_services.roles.rollout.worker import RolloutWorker
from kubealign_services.runtime.rpc.errors import OutOfOrder
from support.tiny_jobs import ARCHITECTURE

PROMPT, GIVEN = [3, 4, 5], [[6], [7, 8, 3]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("given") / "model"
    build_model(
        ARCHITECTURE | {"initializer_range": 0.3},
        train_character_tokenizer(["abcdefgh"]),
        1,
        path,
        "architecture",
    )
    return path


async def asked(
    engine: TorchRolloutEngine, item: rollout_pb2.WorkItem, count: int
) -> list[rollout_pb2.Rollout]:
    """Return the rollouts that a worker with this engine publishes for an item."""

    async def compute(function, *arguments):  # type: ignore[no-untyped-def]
        return function(*arguments)

    bus = MemoryBus()
    generator = SteppedGenerator(engine, compute)
    worker = RolloutWorker("w", bus.new_connection(), generator, FixedWeights(), 8)
    tasks = [asyncio.create_task(generator.run()), asyncio.create_task(worker.run())]
    try:
        await bus.publish("work", item.SerializeToString(), "item")
        rollouts: list[rollout_pb2.Rollout] = []
        while len(rollouts) < count:
            for delivery in await bus.pull("rollouts", "test", 8, 1.0):
                rollouts.append(rollout_pb2.Rollout.FromString(delivery.data))
                await delivery.ack()
        return rollouts
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def item_of(given: list[list[int]]) -> rollout_pb2.WorkItem:
    return rollout_pb2.WorkItem(
        fence=2,
        group_id="compare/1",
        prompt_tokens=PROMPT,
        samples=len(given),
        deadline=4e9,
        purpose="stage",
        continuations=[rollout_pb2.Continuation(tokens=tokens) for tokens in given],
    )


@pytest.mark.timeout(60)
async def test_given_responses_get_the_log_probabilities_of_the_folders_model(folder: Path) -> None:
    engine = TorchRolloutEngine.create(folder, EngineSpec())
    engine.refit(read_folder_weights(folder), BASE_VERSION)
    rollouts = await asked(engine, item_of(GIVEN), 2)
    model = AutoModelForCausalLM.from_pretrained(folder)
    for rollout, given in zip(rollouts, GIVEN, strict=True):
        sequence = decode(rollout.sequence)
        mask = sequence.token("loss_mask").bool()
        assert sequence.tokens.tolist() == PROMPT + given
        assert sequence.tokens[mask].tolist() == given
        with torch.no_grad():
            logits = model(torch.tensor([PROMPT + given])).logits[0].log_softmax(-1)
        expected = [float(logits[len(PROMPT) - 1 + at, token]) for at, token in enumerate(given)]
        assert sequence.token("engine_logprobs")[mask].tolist() == pytest.approx(expected, abs=1e-5)
        assert sequence.token("weight_version")[mask].tolist() == [0] * len(given)


@pytest.mark.timeout(60)
async def test_a_response_beyond_the_context_fails_with_its_cause(folder: Path) -> None:
    engine = TorchRolloutEngine.create(folder, EngineSpec())
    engine.refit(read_folder_weights(folder), BASE_VERSION)
    (rollout,) = await asked(engine, item_of([[3] * 80]), 1)
    assert rollout.finish_reason == rollout_pb2.FINISH_REASON_FAILED
    assert "83 tokens: log-probabilities need 2 to 64" in rollout.error


async def test_fixed_weights_serve_the_newest_fence_only() -> None:
    weights = FixedWeights()
    await weights.wait_for_version(3, 0, timeout=1)
    assert weights.current is not None and (weights.current.fence, weights.current.version) == (3, 0)
    with pytest.raises(StaleFence, match="fence 2 has been replaced by 3"):
        await weights.wait_for_version(2, 0, timeout=1)
    with pytest.raises(OutOfOrder, match="nothing is trained in this job"):
        await weights.wait_for_version(3, 1, timeout=1)
