"""Opens and closes an external engine for a model folder."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from kubealign.spec.engines import BetweenPhases, TensorRTLLMEngine, VllmEngine
from kubealign_services.data.tokenizers import check_vocabulary, load_tokenizer
from kubealign_services.generation.contract import EngineLoad
from kubealign_services.generation.outside.contract import OutsideEngine
from kubealign_services.generation.outside.generator import ModelFacts, OutsideGenerator
from kubealign_services.generation.outside.weight_files import WeightFiles
from kubealign_services.generation.tensorrt_llm.engine import TensorRTLLM
from kubealign_services.generation.torch_engine.model import end_tokens, read_config
from kubealign_services.generation.vllm.engine import Vllm


@asynccontextmanager
async def opened_outside(
    spec: VllmEngine | TensorRTLLMEngine,
    folder: Path,
    memory_files: Path,
    adapted: bool,
    observe: Callable[[EngineLoad], None],
) -> AsyncIterator[OutsideGenerator]:
    """Open an external engine and close it at the end of the block.

    Args:
        folder: Hugging Face configuration and tokenizer.
        memory_files: Folder on a memory file system that the engine's processes see too.
        adapted: The job trains an adapter.

    Raises PermanentFailure where the library is missing, DataError for a tokenizer that does not fit the
    model.
    """
    model = model_facts(folder)
    files = WeightFiles(memory_files)
    engine: OutsideEngine
    if isinstance(spec, VllmEngine):
        engine = Vllm.create(folder, spec, model.context)
    else:
        engine = await TensorRTLLM.create(folder, spec, model.context)
    try:
        yield OutsideGenerator(
            engine,
            model,
            files,
            spec.max_sequences,
            adapted=adapted,
            freed=spec.between_phases is BetweenPhases.FREED,
            observe=observe,
        )
    finally:
        files.forget()
        await engine.close()


def model_facts(folder: Path) -> ModelFacts:
    """Read a folder's model properties in the same way as the torch engine."""
    config = read_config(folder)
    tokenizer: Any = load_tokenizer(folder, "rollout engine")
    check_vocabulary(config, tokenizer, f"rollout engine, {folder}")
    text = config.get_text_config()

    def decode(tokens: Sequence[int]) -> str:
        return str(
            tokenizer.decode(list(tokens), skip_special_tokens=False, clean_up_tokenization_spaces=False)
        )

    return ModelFacts(
        int(text.max_position_embeddings),
        int(text.vocab_size),
        end_tokens(folder, config, tokenizer),
        decode,
    )
