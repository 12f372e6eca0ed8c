"""Creates the generation engine that a job's spec names."""

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from kubealign.roles import rollout_worker_number
from kubealign.spec.sections.engines import Engine
from kubealign_services.generation.contract import Generator
from kubealign_services.roles.rollout.token_counter import make_token_counter
from kubealign_services.runtime.process.context import ProcessContext
from kubealign_services.runtime.process.failures import PermanentFailure


@asynccontextmanager
async def open_generator(context: ProcessContext, engine: Engine, folder: Path) -> AsyncIterator[Generator]:
    """Open a generator for the model in a Hugging Face folder; its weights arrive by refit.

    Everything that the engine starts ends with the context.

    Raises:
        PermanentFailure: The engine is not available, or cannot sample from the reference.
    """
    algorithm = context.job.spec.algorithm
    is_one_process = engine.torch is not None and engine.torch.tensor_parallel == 1
    if algorithm.value.reference_sample and not is_one_process:
        raise PermanentFailure(
            f"algorithm.{algorithm.member} samples from the reference: rollout.engine must be torch with "
            "tensorParallel 1"
        )
    observe = make_token_counter(context.metrics)
    if engine.torch is not None:
        # Imported on demand, like the engines below: their libraries are not in every engine's environment.
        from kubealign_services.roles.rollout.torch_generator import open_torch_generator

        async with open_torch_generator(context, engine.torch, folder, observe) as generator:
            yield generator
    elif engine.triton is not None:
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
