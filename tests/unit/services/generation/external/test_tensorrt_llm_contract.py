"""The engine contract over TensorRT-LLM's adapter and a stand-in for its library."""

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import pytest
import pytest_asyncio

from kubealign.spec.sections.engines import IdleMemoryPolicy, TensorRTLLMEngineSpec
from kubealign.spec.sections.precision import Precision
from kubealign_services.generation.contract import EngineLost, RequestRefused
from kubealign_services.generation.external import generator as external_generator
from kubealign_services.generation.external.contract import ExternalEngineDied
from kubealign_services.generation.external.factory import open_external_engine
from kubealign_services.generation.external.generator import ExternalGenerator
from support import fake_tensorrt_llm
from support.engine_contract.every_engine import EngineContract
from support.engine_contract.generation import (
    CAPACITY,
    MANY_KINDS,
    NARROW_AND_COLD,
    SECONDS,
    Subject,
    generated,
    group,
    refitted,
)
from support.engine_contract.tiny_model import write_model

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(find_spec("tensorrt_llm") is not None, reason="TensorRT-LLM is installed"),
]

_MODULES = ("tensorrt_llm", "kubealign_services.generation.external.tensorrt_llm.worker")


@pytest.fixture(autouse=True)
def library(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Put the stand-in in the place of the library for the duration of a test."""
    monkeypatch.syspath_prepend(Path(fake_tensorrt_llm.__file__).parent)
    yield
    for name in [name for name in sys.modules if name.startswith(_MODULES)]:
        del sys.modules[name]


def spec(idle: IdleMemoryPolicy = IdleMemoryPolicy.RESIDENT) -> TensorRTLLMEngineSpec:
    return TensorRTLLMEngineSpec(precision=Precision.FLOAT32, max_sequences=CAPACITY, between_phases=idle)


def library_engine(generator: ExternalGenerator) -> Any:
    """Return the library's engine."""
    adapter: Any = generator._engine
    return adapter._engine


class TestTensorRTLLM(EngineContract):
    kinds: ClassVar = [request for request in MANY_KINDS if request is not NARROW_AND_COLD]

    @pytest_asyncio.fixture
    async def subject(self, tmp_path: Path) -> AsyncIterator[Subject]:
        folder = write_model(tmp_path / "model")
        async with open_external_engine(spec(), folder, tmp_path, True, lambda load: None) as generator:
            running = asyncio.create_task(generator.run())
            yield Subject(generator, folder)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


async def test_truncated_sampling_at_other_temperatures_is_refused(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model")
    async with open_external_engine(spec(), folder, tmp_path, False, lambda load: None) as generator:
        await refitted(Subject(generator, folder), 1)
        with pytest.raises(RequestRefused, match=r"temperature is 0\.6 together with topK"):
            await generated(generator, NARROW_AND_COLD)
        engine: Any = generator._engine
        with pytest.raises(ValueError, match=r"at temperature 1 only, not at 0\.6"):
            await engine.score("cold", [1, 2], 0.6)


async def test_prefixes_are_dropped_once_a_refit(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model")
    async with open_external_engine(spec(), folder, tmp_path, False, lambda load: None) as generator:
        for version in (1, 2):
            await refitted(Subject(generator, folder), version)
            assert library_engine(generator).worker.engine.prefix_resets == version


async def test_idle_memory_is_released_and_weights_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(external_generator, "IDLE_SECONDS", 0.05)
    folder, request = write_model(tmp_path / "model"), group("again", 1, 2)
    freed = spec(IdleMemoryPolicy.FREED)
    async with open_external_engine(freed, folder, tmp_path, False, lambda load: None) as generator:
        running = asyncio.create_task(generator.run())
        await refitted(Subject(generator, folder), 1)
        before = await generated(generator, request)
        async with asyncio.timeout(SECONDS):
            while not library_engine(generator)._asleep:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        after = await generated(generator, request)
        assert [sample.tokens for sample in after.values()] == [sample.tokens for sample in before.values()]
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_a_dead_engine_ends_its_requests_and_the_run(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model")
    async with open_external_engine(spec(), folder, tmp_path, False, lambda load: None) as generator:
        running = asyncio.create_task(generator.run())
        await refitted(Subject(generator, folder), 1)
        library_engine(generator).die()
        with pytest.raises(EngineLost, match="TensorRT-LLM's engine has died"):
            await generated(generator, group("lost", 1))
        async with asyncio.timeout(SECONDS):
            with pytest.raises(ExternalEngineDied, match="TensorRT-LLM's engine has died"):
                await running
