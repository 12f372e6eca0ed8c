"""Generators over the torch engine: in one process, in several, and with the reference's weights too."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from kubealign.spec.sections.engines import TorchEngineSpec
from kubealign_services.data.prepared import load_prepared
from kubealign_services.generation.contract import REFERENCE_VERSION, EngineLoad, Generator
from kubealign_services.generation.model_folder import read_config
from kubealign_services.generation.reference_engine import EngineWithReference
from kubealign_services.generation.torch_engine.engine import TorchRolloutEngine, create_local_runner
from kubealign_services.roles.rollout.generator import SteppedGenerator
from kubealign_services.roles.rollout.tensor_parallel import open_leader_generator
from kubealign_services.roles.rollout.weights import read_folder_weights
from kubealign_services.runtime.process.context import ProcessContext


@asynccontextmanager
async def open_torch_generator(
    context: ProcessContext, spec: TorchEngineSpec, folder: Path, observe: Callable[[EngineLoad], None]
) -> AsyncIterator[Generator]:
    """Open a generator over the torch engine, with the reference's weights too where the algorithm samples
    from it.

    Raises the errors of `TorchRolloutEngine.create` and `open_leader_generator`.
    """
    shares_cores = context.settings.shares_cores
    records_routing = context.job.spec.rollout.routing_replay
    if context.job.spec.algorithm.value.reference_sample:
        reference = load_prepared(context.settings.run_dir).model_folder("reference")
        combined = await context.compute(
            create_engine_with_reference, folder, reference, spec, shares_cores, records_routing
        )
        yield SteppedGenerator(combined, context.compute_within_deadline, observe)
    elif spec.tensor_parallel > 1:
        async with open_leader_generator(context, spec, folder, observe) as generator:
            yield generator
    else:
        engine = await context.compute(TorchRolloutEngine.create, folder, spec, shares_cores, records_routing)
        yield SteppedGenerator(engine, context.compute_within_deadline, observe)


def create_engine_with_reference(
    folder: Path,
    reference: Path,
    spec: TorchEngineSpec,
    shares_cores: bool = False,
    records_routing: bool = False,
) -> EngineWithReference:
    """Create an engine whose policy has no weights yet and whose reference has those of a folder.

    Tokenizer and end tokens are the policy's for both. Each has half of the memory for keys and values.
    Raises the errors of `TorchRolloutEngine.create`.

    Args:
        folder: Hugging Face folder of the policy.
        reference: Hugging Face folder of the reference.
        shares_cores: See `LocalModelRunner`.
        records_routing: The policy's samples have the experts that it chose; the reference's never do.
    """
    cache_gib = None if spec.cache_gib is None else spec.cache_gib / 2
    half = spec.model_copy(update={"cache_share": spec.cache_share / 2, "cache_gib": cache_gib})
    # Before either engine measures the free memory, both models have theirs.
    runner = create_local_runner(read_config(reference), spec, shares_cores)
    policy = TorchRolloutEngine.create(folder, half, shares_cores, records_routing)
    frozen = TorchRolloutEngine.with_runner(folder, half, lambda config: runner)
    frozen.refit(read_folder_weights(reference), REFERENCE_VERSION)
    return EngineWithReference(policy, frozen)
