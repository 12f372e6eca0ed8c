"""The memory of a rollout engine on one device."""

from dataclasses import dataclass

from kubealign.plan import parameters
from kubealign.plan.amounts import GIB
from kubealign.plan.frozen import forward_working
from kubealign.plan.machine import CONTEXT, PROCESS, Device, Machine
from kubealign.plan.parts import Moment
from kubealign.plan.shape import ModelShape
from kubealign.plan.states import width
from kubealign.plan.work import Work
from kubealign.spec.engines import Engine, TensorRTLLMEngine, TorchEngine, TritonEngine, VllmEngine
from kubealign.spec.precision import Precision
from kubealign.spec.rollout import Sampling

#: Tokens of a page of our engine's cache: as generation/torch_engine/ragged.py has it.
PAGE_TOKENS = 16


@dataclass(frozen=True)
class Generation:
    """One worker. devices: that it takes. sequences: that its cache holds at once, of those allowed."""

    moment: Moment
    devices: int
    sequences: int
    allowed: int


def cache_bytes(shape: ModelShape, tokens: int, precision: Precision, tensor: int = 1) -> int:
    """Keys and values of so many tokens in all layers, on one of `tensor` devices; each holds at least one
    of the heads."""
    heads = max(1, -(-shape.key_heads // tensor))
    return 2 * shape.layers * heads * shape.head_width * width(precision) * tokens


def generation(
    shape: ModelShape, engine: Engine, sampling: Sampling, work: Work, machine: Machine
) -> Generation:
    """What the spec's engine needs, or makes of what there is."""
    member = engine.value
    if isinstance(member, TorchEngine | TritonEngine):
        return _own(shape, member, sampling, work, machine)
    assert isinstance(member, TensorRTLLMEngine | VllmEngine)
    return _foreign(shape, member, work, machine)


def _own(
    shape: ModelShape, engine: TorchEngine | TritonEngine, sampling: Sampling, work: Work, machine: Machine
) -> Generation:
    """Our engine: weights, on a CPU once more in the order of its products; pages for all sequences at their
    longest, or for as many as its share of the memory holds; and the logits of all of them: in fp32 as they
    come, scaled, as log-probabilities, and cumulated in fp64 twice; where top-k or top-p cuts, sorted with
    their order instead. On a CPU without a cut nothing is made of the logits but themselves."""
    tensor = engine.tensor_parallel if isinstance(engine, TorchEngine) else 1
    on_gpu = machine.device is Device.GPU
    process = CONTEXT if on_gpu else PROCESS
    weights = _weights(shape, engine.precision, tensor) * (1 if on_gpu else 2)
    cut = sampling.top_k > 0 or sampling.top_p < 1
    number = 52 if cut else 28 if on_gpu else 4
    logits = number * engine.max_sequences * shape.vocabulary
    prompts = min(engine.prefill_tokens, engine.max_sequences * work.prompt)
    forward = forward_working(shape, max(prompts, work.prompt), engine.precision, has_vocabulary=False)
    positions = -(-work.sequence // PAGE_TOKENS) * PAGE_TOKENS
    each = cache_bytes(shape, positions, engine.precision, tensor)
    room = int(engine.cache_share * max(0, machine.memory - process - weights))
    if engine.cache_gib is not None:
        room = int(engine.cache_gib * GIB)
    sequences = min(engine.max_sequences, room // each)
    return Generation(
        Moment(
            "a step",
            {
                "process": process,
                "weights": weights,
                # Less than one sequence is none: the plan then shows what one would take.
                "cache": each * max(1, sequences),
                "activations": max(logits, -(-forward // tensor)),
            },
        ),
        tensor,
        sequences,
        engine.max_sequences,
    )


def _weights(shape: ModelShape, precision: Precision, tensor: int, pipeline: int = 1) -> int:
    return -(-width(precision) * parameters.total(shape) // (tensor * pipeline))


def _foreign(
    shape: ModelShape, engine: TensorRTLLMEngine | VllmEngine, work: Work, machine: Machine
) -> Generation:
    """Engines that give their cache what is left: vLLM of its share of the memory, TensorRT-LLM a share of
    what is free. How many sequences that is, is what counts."""
    tensor, pipeline = engine.tensor_parallel, engine.pipeline_parallel
    weights = _weights(shape, engine.precision, tensor, pipeline)
    working = forward_working(shape, 8192, engine.precision, has_vocabulary=False) // tensor
    fixed = CONTEXT + weights + working
    if isinstance(engine, VllmEngine):
        left = int(machine.memory * engine.memory_share) - fixed
    else:
        left = int((machine.memory - fixed) * engine.cache_share)
    each = -(-cache_bytes(shape, work.sequence, engine.precision, tensor) // pipeline)
    sequences = min(engine.max_sequences, max(0, left // each))
    # Less than one sequence is none: the plan then shows what one would take.
    cache = left if sequences else each
    return Generation(
        Moment("a step", {"process": CONTEXT, "weights": weights, "cache": cache, "activations": working}),
        tensor * pipeline,
        sequences,
        engine.max_sequences,
    )
