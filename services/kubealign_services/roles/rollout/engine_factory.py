"""Creates the generation engine that a job's spec names."""

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from kubealign.roles import rollout_worker_number
from kubealign.spec.sections.engines import Engine, TorchEngineSpec
from kubealign_services.data.prepared import load_prepared
from kubealign_services.generation.contract import REFERENCE_VERSION, Generator
from kubealign_services.generation.model_folder import read_config
from kubealign_services.generation.reference_engine import EngineWithReference
from kubealign_services.generation.torch_engine.engine import TorchRolloutEngine, create_local_runner
from kubealign_services.roles.rollout.generator import SteppedGenerator
from kubealign_services.roles.rollout.tensor_parallel import open_leader_generator
from kubealign_services.roles.rollout.token_counter import make_token_counter
from kubealign_services.roles.rollout.weights import read_folder_weights
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
    algorithm = context.job.spec.algorithm
    records_routing = context.job.spec.rollout.routing_replay
    if algorithm.value.reference_sample:
        if engine.torch is None or engine.torch.tensor_parallel > 1:
            raise PermanentFailure(
                f"algorithm.{algorithm.member} samples from the reference: rollout.engine must be torch with "
                "tensorParallel 1"
            )
        reference = load_prepared(context.settings.run_dir).model_folder("reference")
        combined = await context.compute(
            create_engine_with_reference,
            folder,
            reference,
            engine.torch,
            context.settings.shares_cores,
            records_routing,
        )
        yield SteppedGenerator(combined, context.compute_within_deadline, observe)
    elif engine.torch is not None and engine.torch.tensor_parallel > 1:
        async with open_leader_generator(context, engine.torch, folder, observe) as generator:
            yield generator
    elif engine.torch is not None:
        shares_cores = context.settings.shares_cores
        torch_engine = await context.compute(
            TorchRolloutEngine.create, folder, engine.torch, shares_cores, records_routing
        )
        yield SteppedGenerator(torch_engine, context.compute_within_deadline, observe)
    elif engine.triton is not None:
        # Imported lazily, like the engines below: tritonclient is an optional dependency.
        from kubealign_services.roles.rollout.triton_generator import open_triton_generator

        async with open_triton_generator(context, engine.triton, folder, observe) as generator:
            yield generator
    else:
        spec = engine.vllm or engine.tensorrt_llm or engine.openai
        if spec is None:
            raise PermanentFailure(f"rollout.engine.{engine.member} is not available yet")
        from kubealign_services.generation.external.factory import open_external_engine

        lora, files = context.job.spec.trainer.lora, context.settings.shared_memory
        if engine.openai is not None and engine.openai.weight_folder is not None:
            files = clear_weight_folder(engine.openai.weight_folder, context.job.name, context.settings.name)
        worker = rollout_worker_number(context.settings.name)
        async with open_external_engine(spec, folder, files, lora, observe, worker) as external_generator:
            yield external_generator


def clear_weight_folder(shared: str, job: str, worker: str) -> Path:
    """Return the folder of a worker's weight files in a folder that it shares with an inference server.

    Files that a killed worker has left there are removed. Raises PermanentFailure where the worker cannot
    write.
    """
    folder = Path(shared) / job / worker
    try:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PermanentFailure(
            f"rollout.engine.openai.weightFolder is {shared!r}, where the worker cannot write: "
            f"{error.strerror}"
        ) from error
    return folder


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
