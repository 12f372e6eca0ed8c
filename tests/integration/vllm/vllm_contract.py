"""The engine contract over vLLM, which starts once; run in vLLM's environment by `test_vllm_contract.py`."""

import asyncio
import math
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from kubealign.spec.sections.engines import IdleMemoryPolicy, VllmEngineSpec
from kubealign.spec.sections.precision import Precision
from kubealign.spec.sections.rollout import InFlightPolicy
from kubealign.spec.sections.training import Lora
from kubealign_services.generation.contract import EngineLost
from kubealign_services.generation.external import generator as external_generator
from kubealign_services.generation.external.contract import ExternalEngineDied
from support.engine_contract.every_engine import EngineContract
from support.engine_contract.generation import (
    CAPACITY,
    GREEDY,
    SECONDS,
    Subject,
    check_same,
    generated,
    group,
    refitted,
)
from support.engine_contract.oracle import check_sample
from support.engine_contract.tiny_model import VOCABULARY, write_model
from support.external_stage import Stage, open_stage
from support.running import children

pytestmark = [pytest.mark.timeout(300), pytest.mark.asyncio(loop_scope="module")]

SPEC = VllmEngineSpec(
    precision=Precision.FLOAT32,
    cache_gib=0.25,
    max_sequences=CAPACITY,
    between_phases=IdleMemoryPolicy.FREED,
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    folder, memory = write_model(tmp_path_factory.mktemp("model")), tmp_path_factory.mktemp("memory")
    async with open_stage(SPEC, Lora(), folder, memory) as new_stage:
        yield new_stage


class TestVllm(EngineContract):
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
    # Only zeros are left of the embeddings of these tokens, so the next token is any with the same chance.
    [logprob] = await generator._engine.score("released", [100, 120])
    assert logprob == pytest.approx(-math.log(VOCABULARY), abs=1e-6)
    check_same(await generated(generator, GREEDY), before)
    check_sample(before["greedy", 0], GREEDY, 1, stage.subject.folder)


def engine_core() -> int:
    """Return the process of vLLM's engine, a child of this one."""
    [engine] = [
        pid for pid in children(os.getpid()) if b"EngineCore" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]
    return engine


async def test_a_killed_engine_ends_its_requests_and_the_run(stage: Stage) -> None:
    """The last test: the engine does not come back."""
    await refitted(stage.subject, 1)
    request = group("killed", *range(4 * CAPACITY), max_tokens=80, min_tokens=80)
    running = asyncio.create_task(generated(stage.subject.generator, request))
    await asyncio.sleep(0)
    engine = engine_core()
    os.kill(engine, signal.SIGKILL)
    async with asyncio.timeout(SECONDS):
        with pytest.raises(EngineLost, match="vLLM's engine has died"):
            await running
        with pytest.raises(ExternalEngineDied, match="vLLM's engine has died"):
            await stage.running
