"""Opens and closes an external engine for a model folder."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from kubealign.spec.sections.engines import (
    AdapterMode,
    IdleMemoryPolicy,
    OpenAIEngineSpec,
    TensorRTLLMEngineSpec,
    VllmEngineSpec,
)
from kubealign.spec.sections.training import Lora
from kubealign_services.data.models.context_length import context_length
from kubealign_services.data.tokenization.tokenizers import check_vocabulary, decode_ids, load_tokenizer
from kubealign_services.generation.contract import EngineLoad
from kubealign_services.generation.expected_weights import ExpectedWeights
from kubealign_services.generation.external.contract import ExternalEngine
from kubealign_services.generation.external.generator import ExternalGenerator, GeneratorOptions, ModelInfo
from kubealign_services.generation.external.native_adapters import AdapterShape, NativeAdapters
from kubealign_services.generation.external.openai.engine import OpenAIExternalEngine
from kubealign_services.generation.external.tensorrt_llm.engine import TensorRTLLMExternalEngine
from kubealign_services.generation.external.vllm.engine import VllmExternalEngine
from kubealign_services.generation.external.vllm.parameters import TargetLayers
from kubealign_services.generation.external.weight_files import WeightFiles
from kubealign_services.generation.model_folder import end_tokens, read_config
from kubealign_services.runtime.process.failures import PermanentFailure
from kubealign_services.training.adapters.targets import select_target_layers


@asynccontextmanager
async def open_external_engine(
    spec: VllmEngineSpec | TensorRTLLMEngineSpec | OpenAIEngineSpec,
    folder: Path,
    memory_files: Path,
    lora: Lora | None,
    observe: Callable[[EngineLoad], None],
    worker: int = 0,
) -> AsyncIterator[ExternalGenerator]:
    """Open an external engine and close it at the end of the block.

    Args:
        folder: Hugging Face configuration and tokenizer.
        memory_files: Folder, on a memory file system where possible, that the engine's processes see too.
        lora: Adapter that the job trains.
        worker: Number of the worker, from 0; servers that run already have one for each.

    Raises PermanentFailure where the library is missing or cannot apply the adapter, or a server lacks an
    ability; ExternalEngineDied for a server that does not answer; DataError for a tokenizer that does not fit
    the model.
    """
    model = read_model_info(folder)
    files = WeightFiles(memory_files)
    frees_memory = getattr(spec, "between_phases", None) is IdleMemoryPolicy.FREED
    engine: ExternalEngine
    native: NativeAdapters | None = None
    if isinstance(spec, OpenAIEngineSpec):
        engine = client = await OpenAIExternalEngine.create(spec, worker, model.vocabulary, files)
        model = replace(model, context=min(model.context, client.context))
    elif not isinstance(spec, VllmEngineSpec):
        engine = await TensorRTLLMExternalEngine.create(folder, spec, model.context)
    elif lora is None or spec.adapters is AdapterMode.MERGED:
        engine = await VllmExternalEngine.create(folder, spec, model.context)
    else:
        targets, shape = _read_adapter(folder, lora)
        adapting = await VllmExternalEngine.create(folder, spec, model.context, targets)
        engine, native = adapting, NativeAdapters(adapting, shape, files, frees_memory)
    try:
        options = GeneratorOptions(spec.max_sequences, lora is not None, frees_memory)
        yield ExternalGenerator(engine, model, files, options, observe, native)
    finally:
        files.remove_kept()
        if native is not None:
            native.close()
        await engine.close()


def _read_adapter(folder: Path, lora: Lora) -> tuple[TargetLayers, AdapterShape]:
    """Return the layers that the job adapts, and the shape of its adapters.

    Raises PermanentFailure for targets that the model does not have.
    """
    model = _model_without_memory(read_config(folder))
    try:
        names = select_target_layers(model, lora.targets)
    except ValueError as error:
        raise PermanentFailure(f"trainer.{error}") from error
    return TargetLayers(lora.rank, names), AdapterShape.of_model(model, lora)


def read_model_info(folder: Path) -> ModelInfo:
    """Read a folder's model properties in the same way as the torch engine."""
    config = read_config(folder)
    tokenizer: Any = load_tokenizer(folder, "rollout engine")
    check_vocabulary(config, tokenizer, f"rollout engine, {folder}")
    text = config.get_text_config()
    return ModelInfo(
        _context(text, folder),
        int(text.vocab_size),
        end_tokens(folder, config, tokenizer),
        partial(decode_ids, tokenizer),
        ExpectedWeights(_model_without_memory(config)),
    )


def _context(text: Any, folder: Path) -> int:
    context = context_length(text)
    if context is None:
        raise PermanentFailure(
            f"rollout engine, {folder}: config.json states no max_position_embeddings, so prompts cannot be "
            "checked against it"
        )
    return context


def _model_without_memory(config: Any) -> Any:
    auto: Any = AutoModelForCausalLM
    with torch.device("meta"):
        return auto.from_config(config)
