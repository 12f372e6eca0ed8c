"""The engine contract over the torch engine in this process."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from kubealign.spec.sections import engines as engine_spec
from kubealign_services.generation.torch_engine.engine import TorchRolloutEngine
from kubealign_services.roles.rollout.generator import SteppedGenerator
from support.engine_contract.generation import CAPACITY, Subject
from support.engine_contract.own_engines import OwnEngineContract
from support.engine_contract.tiny_model import write_model

pytestmark = pytest.mark.timeout(120)


class TestTorchEngine(OwnEngineContract):
    @pytest_asyncio.fixture
    async def subject(self, tmp_path: Path) -> AsyncIterator[Subject]:
        folder = write_model(tmp_path)
        engine = TorchRolloutEngine.create(folder, engine_spec.TorchEngineSpec(max_sequences=CAPACITY))
        generator = SteppedGenerator(engine, asyncio.to_thread)
        running = asyncio.create_task(generator.run())
        yield Subject(generator, folder)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
