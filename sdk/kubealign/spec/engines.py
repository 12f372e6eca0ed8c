"""The engines that responses are generated with."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from kubealign.spec.base import MOST, ShortText, Spec, Union
from kubealign.spec.precision import Precision

Share = Annotated[float, Field(gt=0, le=1)]


class OwnEngine(Spec):
    """What our engine has, wherever it runs."""

    precision: Precision = Field(Precision.FLOAT32, description="Of weights, cache and arithmetic.")
    max_sequences: int = Field(128, ge=1, le=MOST, description="Sequences generated at the same time.")
    prefill_tokens: int = Field(
        4096,
        ge=1,
        le=MOST,
        description="Most prompt tokens of one forward pass, beside those of the running sequences; longer "
        "prompts are computed in parts.",
    )
    cache_share: Share = Field(
        0.85,
        description="Share of the free memory (the accelerator's, or the machine's) that keys and values may "
        "take; where it is used up, the youngest sequences wait and are computed again.",
    )
    cache_gib: float | None = Field(
        None, gt=0, description="Most GiB that keys and values take; null: as cacheShare says."
    )


class TorchEngine(OwnEngine):
    """Our own engine on PyTorch: continuous batching over pages of keys and values."""

    tensor_parallel: int = Field(
        1, ge=1, le=64, description="Processes (pods) of one worker that share the weights and the cache."
    )


class TritonEngine(OwnEngine):
    """Our engine behind NVIDIA's Triton Inference Server: one beside each worker, or one that is there."""

    endpoint: ShortText | None = Field(
        None,
        description="host:port of the gRPC service of a Triton server that is there already, with the model "
        "repository of kubealign; it sees the same shared memory. null: one is started beside each worker.",
    )
    start_timeout_seconds: float = Field(
        120.0,
        gt=0,
        description="A server that is not ready, or not back, by then is an error.",
    )


class BetweenPhases(StrEnum):
    """While others use the accelerator. Resident: the engine keeps all that it has. Freed: it gives back its
    weights and its cache, and takes them again with the next refit."""

    RESIDENT = "Resident"
    FREED = "Freed"


class TensorRTLLMEngine(Spec):
    """NVIDIA's TensorRT-LLM through its LLM interface, refitted in place."""

    precision: Precision = Field(Precision.BFLOAT16, description="Of weights, cache and arithmetic.")
    max_sequences: int = Field(256, ge=1, le=MOST, description="Sequences generated at the same time.")
    tensor_parallel: int = Field(1, ge=1, le=64, description="Accelerators that share each layer's matrices.")
    pipeline_parallel: int = Field(1, ge=1, le=64, description="Accelerators that share the layers.")
    cache_share: Share = Field(0.85, description="Share of the free memory that the KV cache takes.")
    between_phases: BetweenPhases = Field(
        BetweenPhases.RESIDENT, description="What it keeps while it does not generate."
    )


class VllmEngine(Spec):
    """vLLM, refitted in place."""

    precision: Precision = Field(Precision.BFLOAT16, description="Of weights, cache and arithmetic.")
    max_sequences: int = Field(256, ge=1, le=MOST, description="Sequences generated at the same time.")
    tensor_parallel: int = Field(1, ge=1, le=64, description="Accelerators that share each layer's matrices.")
    pipeline_parallel: int = Field(1, ge=1, le=64, description="Accelerators that share the layers.")
    memory_share: Share = Field(0.85, description="Share of the accelerator's memory that it takes in all.")
    between_phases: BetweenPhases = Field(
        BetweenPhases.RESIDENT, description="What it keeps while it does not generate."
    )


class Engine(Union):
    """What generates."""

    default_member = "torch"

    torch: TorchEngine | None = Field(None, description="Our own engine on PyTorch.")
    triton: TritonEngine | None = Field(None, description="Our engine behind a Triton Inference Server.")
    tensorrt_llm: TensorRTLLMEngine | None = Field(
        None, alias="tensorrtLLM", description="NVIDIA's TensorRT-LLM."
    )
    vllm: VllmEngine | None = Field(None, description="vLLM.")
