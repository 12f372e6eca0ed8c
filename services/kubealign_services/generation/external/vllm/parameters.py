"""Keyword arguments for vLLM's engine and requests. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kubealign.spec.sections.engines import MAX_NATIVE_ADAPTER_RANK, IdleMemoryPolicy, VllmEngineSpec
from kubealign_services.generation.contract import SamplingParameters
from kubealign_services.generation.external.vllm.extension_names import WORKER_EXTENSION

#: Least number of tokens of one pass on a CPU, as vLLM has it.
_CPU_BATCHED_TOKENS = 2048
_CPU_CACHE_GIB = 4.0
#: Tokens of a block of the KV cache on a CPU, the least there; only prompts that fill a block are computed
#: once for several samples. vLLM's own choice is 128.
_CPU_BLOCK_TOKENS = 32
#: Ranks for which vLLM can reserve memory.
_ADAPTER_RANKS = (8, 16, 32, 64, 128, 256, 320, MAX_NATIVE_ADAPTER_RANK)


@dataclass(frozen=True)
class TargetLayers:
    """The layers that a job adapts, by their names in the checkpoint, and the rank of its adapter."""

    rank: int
    names: Sequence[str]

    @property
    def suffixes(self) -> list[str]:
        """Last parts of the names."""
        return sorted({name.rsplit(".", 1)[-1] for name in self.names})


def library_variables(spec: VllmEngineSpec, *, on_cpu: bool) -> dict[str, str]:
    """Build environment variables of vLLM's processes; variables that are set already take precedence.

    On a CPU threads are bound to no cores, because other processes of the job may use the same ones; an
    engine of one process runs within its scheduler's process; nothing is compiled, which takes a minute and a
    C++ compiler.
    """
    variables = {"VLLM_NO_USAGE_STATS": "1"}
    if on_cpu:
        variables |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "TORCH_COMPILE_DISABLE": "1"}
        if spec.tensor_parallel * spec.pipeline_parallel == 1:
            variables["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    return variables


def engine_arguments(
    folder: Path, spec: VllmEngineSpec, context: int, *, on_cpu: bool, adapter: TargetLayers | None = None
) -> dict[str, Any]:
    """Build keyword arguments of vLLM's AsyncEngineArgs.

    Weights arrive by refit, so none are read. The model's own generation config is left out, because it
    would add to the job's sampling settings.

    On a CPU each prompt is computed in one pass: of a request with a seed, vLLM takes back the random number
    of an unfinished prompt, which the random source of a CPU cannot do.

    Raises ValueError for an adapter of too large a rank.

    Args:
        adapter: Layers that vLLM adapts itself, with one adapter at a time; None: it applies none.
    """
    cache_gib = _CPU_CACHE_GIB if on_cpu and spec.cache_gib is None else spec.cache_gib
    arguments: dict[str, Any] = {
        "model": str(folder),
        "tokenizer": str(folder),
        "load_format": "dummy",
        "dtype": spec.effective_precision.dtype_name,
        "max_model_len": context,
        "max_num_seqs": spec.max_sequences,
        "tensor_parallel_size": spec.tensor_parallel,
        "pipeline_parallel_size": spec.pipeline_parallel,
        "gpu_memory_utilization": spec.memory_share,
        "kv_cache_memory_bytes": None if cache_gib is None else int(cache_gib * 2**30),
        # vLLM has no sleep mode on a CPU, where the worker's extension releases the memory.
        "enable_sleep_mode": spec.between_phases is IdleMemoryPolicy.FREED and not on_cpu,
        "enable_prefix_caching": True,
        "generation_config": "vllm",
        # Under the distribution that is sampled from: after temperature, truncation and forbidden end tokens.
        "logprobs_mode": "processed_logprobs",
        "worker_extension_cls": WORKER_EXTENSION,
        "disable_log_stats": True,
    }
    if adapter is not None:
        arguments |= _adapter_arguments(adapter)
    if on_cpu:
        arguments |= {
            "enforce_eager": True,
            "block_size": _CPU_BLOCK_TOKENS,
            "enable_chunked_prefill": False,
            "max_num_batched_tokens": max(context, _CPU_BATCHED_TOKENS),
        }
    return arguments


def _adapter_arguments(adapter: TargetLayers) -> dict[str, Any]:
    reserved = next((rank for rank in _ADAPTER_RANKS if rank >= adapter.rank), None)
    if reserved is None:
        raise ValueError(
            f"rollout.engine.vllm.adapters is Native and trainer.lora.rank {adapter.rank}; vLLM applies "
            f"adapters of at most rank {MAX_NATIVE_ADAPTER_RANK}: set Merged, or a smaller rank"
        )
    return {
        "enable_lora": True,
        "max_lora_rank": reserved,
        "max_loras": 1,
        "max_cpu_loras": 1,
        # Without it vLLM also wraps the language-model head, and then fails at log-probabilities of a prompt
        # among other requests.
        "lora_target_modules": adapter.suffixes,
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
