"""Creates the generation engine that a job's spec names."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from kubealign.spec.sections.engines import Engine
from kubealign_services.generation.contract import Generator
from kubealign_services.generation.torch_engine.engine import TorchRolloutEngine
from kubealign_services.roles.rollout.generator import SteppedGenerator
from kubealign_services.roles.rollout.tensor_parallel import open_leader_generator
from kubealign_services.roles.rollout.token_counter import make_token_counter
from kubealign_services.runtime.process.context import ProcessContext
from kubealign_services.runtime.process.failures import PermanentFailure


@asynccontextmanager
async def open_generator(context: ProcessContext, engine: Engine, folder: Path) -> AsyncIterator[Generator]:
    """Open a generator for the model in a Hugging Face folder; its weights arrive by refit.

    Everything that the engine starts ends with the context.

    Raises:
        PermanentFailure: The engine is not available.
    """
    observe = make_token_counter(context.metrics)
    if engine.torch is not None and engine.torch.tensor_parallel > 1:
        async with open_leader_generator(context, engine.torch, folder, observe) as generator:
            yield generator
    elif engine.torch is not None:
        shares_cores = context.settings.shares_cores
        torch_engine = await context.compute(TorchRolloutEngine.create, folder, engine.torch, shares_cores)
        yield SteppedGenerator(torch_engine, context.compute, observe)
    elif engine.triton is not None:
        # Imported lazily, like the engines below: tritonclient is an optional dependency.
        from kubealign_services.roles.rollout.triton_generator import open_triton_generator

        async with open_triton_generator(context, engine.triton, folder, observe) as generator:
            yield generator
    else:
        spec = engine.vllm or engine.tensorrt_llm
        if spec is None:
            raise PermanentFailure(f"rollout.engine.{engine.member} is not available yet")
        from kubealign_services.generation.external.factory import open_external_engine

        adapted, files = context.job.spec.trainer.lora is not None, context.settings.shared_memory
        async with open_external_engine(spec, folder, files, adapted, observe) as external_generator:
            yield external_generator
