"""Keyword arguments for vLLM's engine and requests. Pure."""

from pathlib import Path
from typing import Any

from kubealign.spec.sections.engines import IdleMemoryPolicy, VllmEngineSpec
from kubealign_services.generation.contract import SamplingParameters
from kubealign_services.generation.external.vllm.worker import WORKER_EXTENSION


def engine_arguments(folder: Path, spec: VllmEngineSpec, context: int) -> dict[str, Any]:
    """Build keyword arguments of vLLM's AsyncEngineArgs.

    Weights arrive by refit, so none are read. The model's own generation config is left out, because it
    would add to the job's sampling settings.
    """
    return {
        "model": str(folder),
        "tokenizer": str(folder),
        "load_format": "dummy",
        "dtype": spec.effective_precision.dtype_name,
        "max_model_len": context,
        "max_num_seqs": spec.max_sequences,
        "tensor_parallel_size": spec.tensor_parallel,
        "pipeline_parallel_size": spec.pipeline_parallel,
        "gpu_memory_utilization": spec.memory_share,
        "enable_sleep_mode": spec.between_phases is IdleMemoryPolicy.FREED,
        "enable_prefix_caching": True,
        "generation_config": "vllm",
        # Under the distribution that is sampled from: after temperature, truncation and forbidden end tokens.
        "logprobs_mode": "processed_logprobs",
        "worker_extension_cls": WORKER_EXTENSION,
        "disable_log_stats": True,
    }


def sampling_arguments(sampling: SamplingParameters, seed: int, end_tokens: list[int]) -> dict[str, Any]:
    """Build keyword arguments of vLLM's SamplingParams for one response.

    The token or string that ends the response stays among its tokens. vLLM's seed has 63 bits.
    """
    return {
        "n": 1,
        "max_tokens": sampling.max_tokens,
        "min_tokens": sampling.min_tokens,
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "seed": seed & 0x7FFFFFFFFFFFFFFF,
        "stop": list(sampling.stop) or None,
        "stop_token_ids": end_tokens,
        # End tokens are passed by this code, so that minTokens applies to them too.
        "ignore_eos": True,
        "include_stop_str_in_output": True,
        "skip_special_tokens": False,
        "detokenize": bool(sampling.stop),
        "logprobs": 0,
    }
