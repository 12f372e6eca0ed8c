"""A running external engine: vLLM in the environment of the tests, or a server of the user's."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from kubealign.spec.sections.engines import OpenAIEngineSpec, TensorRTLLMEngineSpec, VllmEngineSpec
from kubealign.spec.sections.training import Lora
from kubealign_services.generation.external.factory import open_external_engine
from support.engine_contract.generation import Subject


class Stage:
    """The subject, and the task that runs its generator."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self.running = asyncio.create_task(subject.generator.run())


@asynccontextmanager
async def open_stage(
    spec: VllmEngineSpec | OpenAIEngineSpec | TensorRTLLMEngineSpec, lora: Lora, folder: Path, memory: Path
) -> AsyncIterator[Stage]:
    """Run an engine for the model of `folder`; check that no file is left in `memory` at the end."""
    async with open_external_engine(spec, folder, memory, lora, lambda load: None) as generator:
        stage = Stage(Subject(generator, folder))
        yield stage
        stage.running.cancel()
        await asyncio.gather(stage.running, return_exceptions=True)
    # Weights in transfer are deleted.
    assert not await asyncio.to_thread(lambda: list(memory.iterdir()))
