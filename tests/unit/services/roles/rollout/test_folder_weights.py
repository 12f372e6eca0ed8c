"""Weights from folders: the requested version is loaded, once, and each sample has one version."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig

from kubealign.spec.sections.engines import TorchEngineSpec
from kubealign.spec.sections.rollout import InFlightPolicy
from kubealign_services.checkpoints.fence import StaleFence
from kubealign_services.data.tokenization.tokenizers import train_character_tokenizer
from kubealign_services.generation.contract import EngineLost
from kubealign_services.generation.torch_engine.engine import TorchRolloutEngine
from kubealign_services.roles.rollout.folder_weights import FolderWeights
from kubealign_services.roles.rollout.generator import SteppedGenerator
from kubealign_services.runtime.rpc.errors import OutOfOrder


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    root = tmp_path_factory.mktemp("weights")
    tokenizer = train_character_tokenizer(["abcdefgh"])
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=16, intermediate_size=16, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=32,
    )  # fmt: skip
    for step in (0, 20, 40):
        torch.manual_seed(step)
        AutoModelForCausalLM.from_config(config).save_pretrained(root / str(step))
        tokenizer.save_pretrained(root / str(step))
    return {step: root / str(step) for step in (0, 20, 40)}


class RecordingGenerator(SteppedGenerator):
    """A real generator that counts its refits. `may_load`: refits wait for it; `lost`: the next one fails."""

    def __init__(self, engine: TorchRolloutEngine) -> None:
        async def compute(function, *arguments):  # type: ignore[no-untyped-def]
            return function(*arguments)

        super().__init__(engine, compute)
        self.versions: list[int] = []
        self.may_load = asyncio.Event()
        self.may_load.set()
        self.lost = False

    async def refit(
        self,
        tensors: Iterable[tuple[str, Tensor]],
        version: int,
        in_flight: InFlightPolicy = InFlightPolicy.DRAIN,
    ) -> None:
        await self.may_load.wait()
        if self.lost:
            self.lost = False
            raise EngineLost("the server has ended")
        self.versions.append(version)
        await super().refit(tensors, version, in_flight)


@asynccontextmanager
async def loaded(folders: dict[int, Path]) -> AsyncIterator[tuple[RecordingGenerator, FolderWeights]]:
    generator = RecordingGenerator(TorchRolloutEngine.create(folders[0], TorchEngineSpec()))
    running = asyncio.create_task(generator.run())
    weights = FolderWeights(generator, folders)
    try:
        await weights.load()
        yield generator, weights
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def logprob(generator: RecordingGenerator) -> tuple[float, int]:
    logprobs, version = await generator.continuation_logprobs([1, 2], [[3, 4]])
    return sum(logprobs[0]), version


async def test_the_requested_version_is_loaded_once(folders: dict[int, Path]) -> None:
    async with loaded(folders) as (generator, weights):
        first = await logprob(generator)
        await asyncio.gather(*(weights.wait_for_version(1, 40, timeout=30) for _ in range(3)))
        assert generator.versions == [0, 40]
        assert weights.current is not None and (weights.current.fence, weights.current.version) == (1, 40)
        second = await logprob(generator)
        assert (first[1], second[1]) == (0, 40)
        assert first[0] != second[0]
        await weights.wait_for_version(1, 0, timeout=30)
        assert await logprob(generator) == first


async def test_a_load_goes_on_when_a_request_expires(folders: dict[int, Path]) -> None:
    async with loaded(folders) as (generator, weights):
        generator.may_load.clear()
        with pytest.raises(TimeoutError):
            await weights.wait_for_version(1, 20, timeout=0.01)
        assert weights.current is None
        generator.may_load.set()
        async with asyncio.timeout(30):
            while generator.versions != [0, 20]:  # noqa: ASYNC110
                await asyncio.sleep(0)
        await weights.wait_for_version(1, 20, timeout=30)
        assert generator.versions == [0, 20]


async def test_the_version_that_was_lost_is_loaded_again(folders: dict[int, Path]) -> None:
    async with loaded(folders) as (generator, weights):
        generator.lost = True
        with pytest.raises(EngineLost):
            await weights.wait_for_version(1, 20, timeout=30)
        await weights.wait_for_version(1, 20, timeout=30)
        await weights.load()
        assert generator.versions == [0, 20, 20]


async def test_unknown_versions_and_older_fences_are_refused(folders: dict[int, Path]) -> None:
    async with loaded(folders) as (generator, weights):
        await weights.wait_for_version(3, 0, timeout=1)
        with pytest.raises(StaleFence, match="fence 2 has been replaced by 3"):
            await weights.wait_for_version(2, 20, timeout=1)
        with pytest.raises(OutOfOrder, match="version 30 is requested"):
            await weights.wait_for_version(3, 30, timeout=1)
        assert generator.versions == [0]
