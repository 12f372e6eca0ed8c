"""Generation engines."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from kubealign.spec.base import MAX_INT32, ShortText, SpecModel, SpecUnion
from kubealign.spec.sections.precision import Precision

MemoryFraction = Annotated[float, Field(gt=0, le=1)]


class EngineFields(SpecModel):
    """Fields of every engine."""

    precision: Precision | None = Field(
        None,
        description="Precision of weights, KV cache and computation; null: that of the trainer's backend.",
    )

    @property
    def effective_precision(self) -> Precision:
        """Precision that is applied.

        `AlignmentJobSpec.effective_rollout` replaces null by the trainer's; an engine without a job has the
        trainer's default.
        """
        return self.precision or Precision.FLOAT32


class BuiltInEngineSpec(EngineFields):
    """Fields of kubealign's own engine."""

    max_sequences: int = Field(
        128, ge=1, le=MAX_INT32, description="Maximum number of sequences generated concurrently."
    )
    prefill_tokens: int = Field(
        4096,
        ge=1,
        le=MAX_INT32,
        description="Maximum number of prompt tokens per forward pass, in addition to the tokens of "
        "running sequences; longer prompts are prefilled in chunks.",
    )
    cache_share: MemoryFraction = Field(
        0.85,
        description="Fraction of the free memory (of the accelerator, or of the machine) available to "
        "the KV cache; when the cache is full, the youngest sequences are preempted and "
        "recomputed.",
    )
    cache_gib: float | None = Field(
        None, gt=0, description="Maximum size of the KV cache in GiB; null: determined by cacheShare."
    )


class TorchEngineSpec(BuiltInEngineSpec):
    """kubealign's own engine on PyTorch: continuous batching with a paged KV cache."""

    tensor_parallel: int = Field(
        1, ge=1, le=64, description="Processes (pods) of one worker that share the weights and the KV cache."
    )


class TritonEngineSpec(BuiltInEngineSpec):
    """kubealign's own engine behind NVIDIA's Triton Inference Server, started beside each worker or already
    running.
    """

    endpoint: ShortText | None = Field(
        None,
        description="host:port of the gRPC service of a running Triton server that serves kubealign's "
        "model repository and shares the worker's shared memory. null: a server is started "
        "beside each worker.",
    )
    start_timeout_seconds: float = Field(
        120.0,
        gt=0,
        description="Time for the server to become ready, at start and after a restart.",
    )


class IdleMemoryPolicy(StrEnum):
    """Resident: the engine keeps its weights and KV cache.

    Freed: the engine frees its weights and KV cache and reloads them at the next refit.
    """

    RESIDENT = "Resident"
    FREED = "Freed"


class TensorRTLLMEngineSpec(EngineFields):
    """NVIDIA's TensorRT-LLM through its LLM API, refitted in place."""

    max_sequences: int = Field(
        256, ge=1, le=MAX_INT32, description="Maximum number of sequences generated concurrently."
    )
    tensor_parallel: int = Field(
        1, ge=1, le=64, description="Accelerators that share each layer's matrices (tensor parallelism)."
    )
    pipeline_parallel: int = Field(
        1, ge=1, le=64, description="Accelerators that share the layers (pipeline parallelism)."
    )
    cache_share: MemoryFraction = Field(
        0.85, description="Fraction of the free memory used for the KV cache."
    )
    between_phases: IdleMemoryPolicy = Field(
        IdleMemoryPolicy.RESIDENT, description="Memory kept while another process uses the accelerator."
    )


#: Largest rank of an adapter that vLLM applies itself.
MAX_NATIVE_ADAPTER_RANK = 512


class AdapterMode(StrEnum):
    """Merged: the worker merges the adapter into the base weights and loads the adapted matrices.

    Native: the engine keeps the base weights and applies the adapter itself; only the adapter is loaded.
    """

    MERGED = "Merged"
    NATIVE = "Native"


class VllmEngineSpec(EngineFields):
    """vLLM, refitted in place."""

    max_sequences: int = Field(
        256, ge=1, le=MAX_INT32, description="Maximum number of sequences generated concurrently."
    )
    tensor_parallel: int = Field(
        1, ge=1, le=64, description="Accelerators that share each layer's matrices (tensor parallelism)."
    )
    pipeline_parallel: int = Field(
        1, ge=1, le=64, description="Accelerators that share the layers (pipeline parallelism)."
    )
    memory_share: MemoryFraction = Field(
        0.85, description="Fraction of the accelerator's memory that the engine may use in total."
    )
    cache_gib: float | None = Field(
        None,
        gt=0,
        description="Size of the KV cache in GiB, whatever memoryShare says; null: the rest of memoryShare, "
        "and 4 on a CPU, where memoryShare does not apply.",
    )
    between_phases: IdleMemoryPolicy = Field(
        IdleMemoryPolicy.RESIDENT, description="Memory kept while another process uses the accelerator."
    )
    adapters: AdapterMode = Field(
        AdapterMode.MERGED,
        description="Application of the policy's adapter (trainer.lora). Native loads less at a refit and "
        "generates more slowly.",
    )


class Engine(SpecUnion):
    """Generation engine of the rollout workers."""

    default_member = "torch"

    torch: TorchEngineSpec | None = Field(None, description="kubealign's own engine on PyTorch.")
    triton: TritonEngineSpec | None = Field(
        None, description="kubealign's own engine behind a Triton Inference Server."
    )
    tensorrt_llm: TensorRTLLMEngineSpec | None = Field(
        None, alias="tensorrtLLM", description="NVIDIA's TensorRT-LLM."
    )
    vllm: VllmEngineSpec | None = Field(None, description="vLLM.")
