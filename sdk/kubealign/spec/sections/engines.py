"""Generation engines."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from kubealign.spec.base import (
    ABSOLUTE_PATH_PATTERN,
    MAX_INT32,
    WORKER_URL_PATTERN,
    ShortText,
    SpecModel,
    SpecUnion,
)
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


class InferenceServer(StrEnum):
    """Vllm: `vllm serve` in its development mode, with kubealign's worker extension.

    Sglang: SGLang's server.
    """

    VLLM = "Vllm"
    SGLANG = "Sglang"


#: Text in `openai.url` that is replaced by the worker's number.
WORKER_PLACEHOLDER = "{worker}"
#: URLs whose host is the machine, or the pod, of the worker itself.
LOOPBACK_URL_PATTERN = r"^https?://(localhost|127\.[0-9.]+|\[::1\])(:[0-9]+)?(/|$)"


class OpenAIEngineSpec(EngineFields):
    """An inference server with an OpenAI-compatible API, which runs already and serves one worker.

    The key of a server that asks for one is read from OPENAI_API_KEY in the worker's environment, never from
    the job. The precision is the one that the server was started with.
    """

    url: Annotated[str, Field(pattern=WORKER_URL_PATTERN, max_length=1024)] = Field(
        description="URL of the server, without /v1. {worker} in it is replaced by the worker's number, from "
        "0, so that each worker has a server of its own."
    )
    server: InferenceServer = Field(InferenceServer.VLLM, description="Kind of the server.")
    model: ShortText | None = Field(
        None, description="Name under which the server serves the model; null: its only one."
    )
    max_sequences: int = Field(
        256, ge=1, le=MAX_INT32, description="Maximum number of responses requested concurrently."
    )
    weight_folder: Annotated[str, Field(pattern=ABSOLUTE_PATH_PATTERN, max_length=1024)] | None = Field(
        None,
        description="Folder for the files of new weights, which worker and server see under this path; each "
        "file is removed once it is loaded. null: the worker's shared memory, for a server on its machine.",
    )
    start_timeout_seconds: float = Field(
        300.0, gt=0, description="Time for the server to answer when the worker starts."
    )
    request_timeout_seconds: float = Field(
        600.0, gt=0, description="Time for the answer to one request, after which the worker starts again."
    )
    outage_seconds: float = Field(
        30.0,
        gt=0,
        description="Time for which requests to an unreachable or overloaded server are repeated before the "
        "worker ends and is started again.",
    )

    @property
    def names_one_server(self) -> bool:
        """True where the URL is the same for every worker. With a loopback host it is that of each pod."""
        return WORKER_PLACEHOLDER not in self.url


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
    openai: OpenAIEngineSpec | None = Field(
        None, description="An inference server with an OpenAI-compatible API, such as `vllm serve`."
    )
