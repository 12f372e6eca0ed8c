"""Creates the generation engine that a job's spec names."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from kubealign.spec.sections import engines as engine_spec
from kubealign.spec.sections.engines import Engine
from kubealign_services.generation.contract import EngineLoad, Generator
from kubealign_services.generation.torch_engine.engine import TorchRolloutEngine
from kubealign_services.generation.triton_engine.client import TritonConnection, TritonGenerator
from kubealign_services.generation.triton_engine.metrics import TritonMetrics
from kubealign_services.generation.triton_engine.server import (
    ExternalTritonServer,
    ManagedTritonServer,
    TritonServer,
)
from kubealign_services.generation.triton_engine.server_install import TritonInstallation
from kubealign_services.generation.triton_engine.session import EngineSettings, ModelRejected
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
        async with open_triton_generator(context, engine.triton, folder, observe) as generator:
            yield generator
    else:
        spec = engine.vllm or engine.tensorrt_llm
        if spec is None:
            raise PermanentFailure(f"rollout.engine.{engine.member} is not available yet")
        # Imported lazily: the other engines do not need these heavy dependencies.
        from kubealign_services.generation.external.factory import open_external_engine

        adapted, files = context.job.spec.trainer.lora is not None, context.settings.shared_memory
        async with open_external_engine(spec, folder, files, adapted, observe) as external_generator:
            yield external_generator


@asynccontextmanager
async def open_triton_generator(
    context: ProcessContext,
    spec: engine_spec.TritonEngineSpec,
    folder: Path,
    observe: Callable[[EngineLoad], None],
) -> AsyncIterator[Generator]:
    """Start or connect to a Triton server and open its generator.

    Raises:
        PermanentFailure: No server can be started, or it cannot run the model.
        EngineLost: The server is not ready in time.
    """
    settings = context.settings
    settings.shared_memory.mkdir(mode=0o700, parents=True, exist_ok=True)
    server: TritonServer
    if spec.endpoint is not None:
        server = ExternalTritonServer(spec.endpoint)
    else:
        installation = await context.compute(TritonInstallation.find)
        server_folder = settings.shared_memory / f"triton-{settings.name}"
        server = ManagedTritonServer(installation, server_folder, settings.tls, spec.start_timeout_seconds)
    engine_settings = {name: getattr(spec, name) for name in engine_spec.BuiltInEngineSpec.model_fields}
    engine = engine_spec.TorchEngineSpec(**engine_settings)
    triton_settings = EngineSettings(settings.name, folder, engine, settings.threads)
    generator = TritonGenerator(
        TritonConnection(server, settings.tls, spec.start_timeout_seconds),
        triton_settings,
        settings.shared_memory,
        context.compute,
        observe,
    )
    context.metrics.registry.register(TritonMetrics(lambda: server.metrics_address))
    context.conditions.append(lambda: generator.is_ready)
    async with AsyncExitStack() as stack:
        try:
            await stack.enter_async_context(generator)
        except ModelRejected as error:
            raise PermanentFailure(f"rollout.engine.triton: {error}") from error
        yield generator
