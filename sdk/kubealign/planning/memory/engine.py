"""Memory of a rollout engine on one device."""

from dataclasses import dataclass

from kubealign.planning.byte_units import GIB
from kubealign.planning.machine import CUDA_CONTEXT_BYTES, PROCESS_BYTES, Device, Machine
from kubealign.planning.memory.frozen_model import forward_working_bytes
from kubealign.planning.memory.optimizer_states import bytes_per_value
from kubealign.planning.memory.peak import MemoryPeak
from kubealign.planning.model import parameter_counts
from kubealign.planning.model.shape import ModelShape
from kubealign.planning.workload import Workload
from kubealign.spec.sections.engines import (
    Engine,
    OpenAIEngineSpec,
    TensorRTLLMEngineSpec,
    TorchEngineSpec,
    TritonEngineSpec,
    VllmEngineSpec,
)
from kubealign.spec.sections.precision import Precision
from kubealign.spec.sections.rollout import SamplingSpec

#: Tokens per cache page of kubealign's own engine; the same as in generation/torch_engine/ragged_batch.py.
PAGE_TOKENS = 16


@dataclass(frozen=True)
class EngineMemoryEstimate:
    """Memory of one rollout worker.

    Attributes:
        devices: Devices of the worker; 0: it computes nothing itself.
        sequences: Sequences that fit in the KV cache at once, at most `allowed`.
    """

    peak: MemoryPeak
    devices: int
    sequences: int
    allowed: int


def cache_bytes(shape: ModelShape, tokens: int, precision: Precision, tensor: int = 1) -> int:
    """Return KV cache bytes of this many tokens in all layers, on one of `tensor` devices; each device holds
    at least one head.
    """
    heads = max(1, -(-shape.key_heads // tensor))
    return 2 * shape.layers * heads * shape.head_width * bytes_per_value(precision) * tokens


def engine_memory(
    shape: ModelShape,
    engine: Engine,
    sampling: SamplingSpec,
    work: Workload,
    machine: Machine,
    reference: ModelShape | None = None,
) -> EngineMemoryEstimate:
    """Return the memory of the engine in the spec on this machine.

    Args:
        reference: Reference model that the engine samples from as well; None: only from the policy.
    """
    member = engine.value
    if isinstance(member, TorchEngineSpec | TritonEngineSpec):
        return _built_in_engine(shape, member, sampling, work, machine, reference)
    if isinstance(member, OpenAIEngineSpec):
        # The memory of the server is not the job's.
        sequences = member.max_sequences
        return EngineMemoryEstimate(MemoryPeak("a step", {"process": PROCESS_BYTES}), 0, sequences, sequences)
    assert isinstance(member, TensorRTLLMEngineSpec | VllmEngineSpec)
    return _external_engine(shape, member, work, machine)


def _built_in_engine(
    shape: ModelShape,
    engine: TorchEngineSpec | TritonEngineSpec,
    sampling: SamplingSpec,
    work: Workload,
    machine: Machine,
    reference: ModelShape | None,
) -> EngineMemoryEstimate:
    """Return the memory of kubealign's own engine.

    Weights (on a CPU twice, the second copy in the layout of the matrix products); cache pages for all
    sequences at maximum length, or for as many as fit in the cache's share of the memory; and the logits
    of all sequences: in fp32 as computed, scaled, as log-probabilities, and twice cumulated in fp64; with
    top-k or top-p sorted with their order instead. On a CPU without top-k and top-p only the logits
    themselves. A reference has weights and cache pages as well, in half of the cache's share; policy and
    reference compute one after the other.
    """
    tensor = engine.tensor_parallel if isinstance(engine, TorchEngineSpec) else 1
    on_gpu = machine.device is Device.GPU
    process = CUDA_CONTEXT_BYTES if on_gpu else PROCESS_BYTES
    shapes = [shape] if reference is None else [shape, reference]
    weights = [
        _weight_bytes(each, engine.effective_precision, tensor) * (1 if on_gpu else 2) for each in shapes
    ]
    is_truncated = sampling.top_k > 0 or sampling.top_p < 1
    number = 52 if is_truncated else 28 if on_gpu else 4
    logits = number * engine.max_sequences * shape.vocabulary
    prompts = min(engine.prefill_tokens, engine.max_sequences * work.prompt)
    forward = forward_working_bytes(
        shape, max(prompts, work.prompt), engine.effective_precision, has_vocabulary=False
    )
    positions = -(-work.sequence // PAGE_TOKENS) * PAGE_TOKENS
    cache_room = int(engine.cache_share * max(0, machine.memory - process - sum(weights)))
    if engine.cache_gib is not None:
        cache_room = int(engine.cache_gib * GIB)
    caches = [cache_bytes(each, positions, engine.effective_precision, tensor) for each in shapes]
    counts = [min(engine.max_sequences, cache_room // len(shapes) // each) for each in caches]
    sequences = min(counts)
    return EngineMemoryEstimate(
        MemoryPeak(
            "a step",
            {
                "process": process,
                "weights": weights[0],
                **({} if reference is None else {"reference": weights[1]}),
                # If no sequence fits, the plan shows the memory of one sequence.
                "cache": sum(each * max(1, count) for each, count in zip(caches, counts, strict=True)),
                "activations": max(logits, -(-forward // tensor)),
            },
        ),
        tensor,
        sequences,
        engine.max_sequences,
    )


def _weight_bytes(shape: ModelShape, precision: Precision, tensor: int, pipeline: int = 1) -> int:
    return -(-bytes_per_value(precision) * parameter_counts.total(shape) // (tensor * pipeline))


def _external_engine(
    shape: ModelShape, engine: TensorRTLLMEngineSpec | VllmEngineSpec, work: Workload, machine: Machine
) -> EngineMemoryEstimate:
    """Return the memory of an engine that gives the remaining memory to its KV cache.

    vLLM: the stated size, or the remainder of its share of the memory; TensorRT-LLM: a share of the free
    memory. The result of interest is the number of sequences that fit.
    """
    tensor, pipeline = engine.tensor_parallel, engine.pipeline_parallel
    weights = _weight_bytes(shape, engine.effective_precision, tensor, pipeline)
    working = forward_working_bytes(shape, 8192, engine.effective_precision, has_vocabulary=False) // tensor
    fixed = CUDA_CONTEXT_BYTES + weights + working
    if isinstance(engine, VllmEngineSpec) and engine.cache_gib is not None:
        left = int(engine.cache_gib * 2**30)
    elif isinstance(engine, VllmEngineSpec):
        left = int(machine.memory * engine.memory_share) - fixed
    else:
        left = int((machine.memory - fixed) * engine.cache_share)
    each = -(-cache_bytes(shape, work.sequence, engine.effective_precision, tensor) // pipeline)
    sequences = min(engine.max_sequences, max(0, left // each))
    # If no sequence fits, the plan shows the memory of one sequence.
    cache = left if sequences else each
    return EngineMemoryEstimate(
        MemoryPeak(
            "a step",
            {"process": CUDA_CONTEXT_BYTES, "weights": weights, "cache": cache, "activations": working},
        ),
        tensor * pipeline,
        sequences,
        engine.max_sequences,
    )
