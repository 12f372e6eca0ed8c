"""The engine contract over TensorRT-LLM, which starts once; run in its environment by
`test_tensorrt_llm_contract.py`.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, ClassVar

import pytest
import pytest_asyncio

from kubealign.spec.sections.engines import IdleMemoryPolicy, TensorRTLLMEngineSpec
from kubealign.spec.sections.precision import Precision
from kubealign.spec.sections.rollout import InFlightPolicy
from kubealign.spec.sections.training import Lora
from kubealign_services.generation.external import generator as external_generator
from support.engine_contract.every_engine import EngineContract
from support.engine_contract.generation import (
    CAPACITY,
    GREEDY,
    MANY_KINDS,
    NARROW_AND_COLD,
    SECONDS,
    Subject,
    check_same,
    generated,
    refitted,
)
from support.engine_contract.oracle import check_sample
from support.engine_contract.tiny_model import write_model
from support.external_stage import Stage, open_stage

pytestmark = [pytest.mark.timeout(600), pytest.mark.asyncio(loop_scope="module")]

SPEC = TensorRTLLMEngineSpec(
    precision=Precision.FLOAT32,
    cache_share=0.3,
    max_sequences=CAPACITY,
    between_phases=IdleMemoryPolicy.FREED,
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    folder, memory = write_model(tmp_path_factory.mktemp("model")), tmp_path_factory.mktemp("memory")
    async with open_stage(SPEC, Lora(), folder, memory) as new_stage:
        yield new_stage


class TestTensorRTLLM(EngineContract):
    # Prompts are scored at temperature 1 only, so truncated sampling at another temperature is refused.
    kinds: ClassVar = [request for request in MANY_KINDS if request is not NARROW_AND_COLD]

    @pytest_asyncio.fixture(loop_scope="module")
    async def subject(self, stage: Stage) -> Subject:
        return stage.subject


async def test_responses_in_flight_cannot_be_interrupted(stage: Stage) -> None:
    for in_flight in (InFlightPolicy.INTERRUPT, InFlightPolicy.CONTINUE):
        with pytest.raises(ValueError, match=f"inFlight is {in_flight}; this engine can only Drain"):
            async with stage.subject.generator.paused(in_flight):
                raise AssertionError("it was paused")


async def test_idle_memory_is_released_and_weights_come_back(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(external_generator, "IDLE_SECONDS", 0.05)
    generator: Any = stage.subject.generator
    await refitted(stage.subject, 1)
    before = await generated(generator, GREEDY)
    async with asyncio.timeout(SECONDS):
        while not generator._is_asleep:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    check_same(await generated(generator, GREEDY), before)
    check_sample(before["greedy", 0], GREEDY, 1, stage.subject.folder)
