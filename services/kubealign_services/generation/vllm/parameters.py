"""What vLLM is made with and asked, as keyword arguments; pure."""

from pathlib import Path
from typing import Any

from kubealign.spec.engines import BetweenPhases, VllmEngine
from kubealign.spec.precision import Precision
from kubealign_services.generation.contract import SamplingParameters
from kubealign_services.generation.vllm.worker import QUALIFIED

_DTYPES = {Precision.FLOAT32: "float32", Precision.BFLOAT16: "bfloat16"}


def engine_arguments(folder: Path, spec: VllmEngine, context: int) -> dict[str, Any]:
    """Of vLLM's AsyncEngineArgs. The weights come by refit, so that none are read; a model's own generation
    config would add to the job's sampling, so that it is left out."""
    return {
        "model": str(folder),
        "tokenizer": str(folder),
        "load_format": "dummy",
        "dtype": _DTYPES[spec.precision],
        "max_model_len": context,
        "max_num_seqs": spec.max_sequences,
        "tensor_parallel_size": spec.tensor_parallel,
        "pipeline_parallel_size": spec.pipeline_parallel,
        "gpu_memory_utilization": spec.memory_share,
        "enable_sleep_mode": spec.between_phases is BetweenPhases.FREED,
        "enable_prefix_caching": True,
        "generation_config": "vllm",
        # Of the distribution that is sampled from: temperature, cuts and forbidden ends included.
        "logprobs_mode": "processed_logprobs",
        "worker_extension_cls": QUALIFIED,
        "disable_log_stats": True,
    }


def sampling_arguments(sampling: SamplingParameters, seed: int, ends: list[int]) -> dict[str, Any]:
    """Of vLLM's SamplingParams, for one response. What ends it stays among its tokens. A seed has 63 bits
    there."""
    return {
        "n": 1,
        "max_tokens": sampling.max_tokens,
        "min_tokens": sampling.min_tokens,
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "seed": seed & 0x7FFFFFFFFFFFFFFF,
        "stop": list(sampling.stop) or None,
        "stop_token_ids": ends,
        # The ends are ours, minTokens holds for them too.
        "ignore_eos": True,
        "include_stop_str_in_output": True,
        "skip_special_tokens": False,
        "detokenize": bool(sampling.stop),
        "logprobs": 0,
    }
