"""Keyword arguments for TensorRT-LLM's engine and requests. Pure."""

from pathlib import Path
from typing import Any

from kubealign.spec.sections.engines import IdleMemoryPolicy, TensorRTLLMEngineSpec
from kubealign_services.generation.contract import SamplingParameters

#: Import path of the class that TensorRT-LLM mixes into its workers.
WORKER_EXTENSION = "kubealign_services.generation.external.tensorrt_llm.worker.TensorRTLLMWorkerExtension"


def engine_arguments(folder: Path, spec: TensorRTLLMEngineSpec, context: int) -> dict[str, Any]:
    """Build keyword arguments of TensorRT-LLM's LLM, without its KV cache.

    Weights arrive by refit, so none are read.
    """
    return {
        "model": str(folder),
        "tokenizer": str(folder),
        "load_format": "dummy",
        "dtype": spec.effective_precision.dtype_name,
        "max_seq_len": context,
        "max_batch_size": spec.max_sequences,
        "tensor_parallel_size": spec.tensor_parallel,
        "pipeline_parallel_size": spec.pipeline_parallel,
        "orchestrator_type": "ray",
        "ray_worker_extension_cls": WORKER_EXTENSION,
    }


def cache_arguments(spec: TensorRTLLMEngineSpec) -> dict[str, Any]:
    """Build keyword arguments of TensorRT-LLM's KvCacheConfig."""
    return {"free_gpu_memory_fraction": spec.cache_share, "enable_block_reuse": True}


def releases_memory(spec: TensorRTLLMEngineSpec) -> bool:
    """Return True where the engine releases its memory between phases."""
    return spec.between_phases is IdleMemoryPolicy.FREED


def sampling_arguments(sampling: SamplingParameters, seed: int, end_tokens: list[int]) -> dict[str, Any]:
    """Build keyword arguments of TensorRT-LLM's SamplingParams for one response.

    The token or string that ends the response stays among its tokens. Greedy sampling is top-k of 1,
    because a temperature of 0 is rejected.
    """
    greedy = sampling.temperature == 0
    return {
        "n": 1,
        "max_tokens": sampling.max_tokens,
        "min_tokens": sampling.min_tokens or None,
        "temperature": 1.0 if greedy else sampling.temperature,
        "top_k": 1 if greedy else sampling.top_k or None,
        "top_p": None if greedy or sampling.top_p == 1 else sampling.top_p,
        "seed": seed & 0x7FFFFFFFFFFFFFFF,
        "stop": list(sampling.stop) or None,
        # -1 disables its own end token; end tokens are passed by this code.
        "end_id": -1,
        "stop_token_ids": end_tokens or None,
        "include_stop_str_in_output": True,
        "skip_special_tokens": False,
        "detokenize": False,
        "logprobs": 0,
    }
