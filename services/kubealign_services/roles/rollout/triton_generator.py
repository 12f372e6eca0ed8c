"""Opens the generator of a worker whose engine runs in a Triton server."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from kubealign.spec.sections import engines as engine_spec
from kubealign_services.generation.contract import EngineLoad, Generator
from kubealign_services.generation.triton_engine.client import TritonConnection, TritonGenerator
from kubealign_services.generation.triton_engine.metrics import TritonMetrics
from kubealign_services.generation.triton_engine.server import (
    ExternalTritonServer,
    ManagedTritonServer,
    TritonServer,
)
from kubealign_services.generation.triton_engine.server_install import TritonInstallation
from kubealign_services.generation.triton_engine.session import EngineSettings, ModelRejected
from kubealign_services.runtime.process.context import ProcessContext
from kubealign_services.runtime.process.failures import PermanentFailure


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
