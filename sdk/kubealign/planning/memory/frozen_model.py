"""Memory of frozen models: reference, teacher, reward."""

from kubealign.planning.machine import CUDA_CONTEXT_BYTES, PROCESS_BYTES, Device
from kubealign.planning.memory.activations import LOGITS_PER_CHUNK, layer_activations
from kubealign.planning.memory.gathered import gathered_bytes
from kubealign.planning.memory.optimizer_states import bytes_per_value
from kubealign.planning.memory.peak import MemoryPeak, largest_peak
from kubealign.planning.model import parameter_counts
from kubealign.planning.model.shape import ModelShape
from kubealign.spec.sections.precision import Precision

#: Tokens per forward pass of a reward process.
REWARD_PASS_TOKENS = 8192


def forward_working_bytes(shape: ModelShape, tokens: int, precision: Precision, has_vocabulary: bool) -> int:
    """Return bytes of temporary tensors in a forward pass without gradients: one layer's tensors, or the
    logits of two chunks.
    """
    size = bytes_per_value(precision)
    layer = max(layer_activations(shape, index, precision).working for index in range(shape.layers))
    states = size * 3 * shape.hidden + 2 * size * shape.query_width
    rows = min(tokens, max(1, LOGITS_PER_CHUNK // shape.vocabulary))
    return int(max(tokens * (layer + states), 8 * rows * shape.vocabulary * has_vocabulary))


def frozen_model_memory(
    shape: ModelShape,
    precision: Precision,
    tokens: int,
    device: Device,
    has_vocabulary: bool,
    count: int = 1,
    ranks: int = 1,
) -> MemoryPeak:
    """Return the memory peak of one of the ranks that share `count` models of this shape, on its device.

    A rank loads each model whole into host memory before it keeps its shard: on a CPU this is often the peak.
    """
    size = bytes_per_value(precision)
    weights = size * (parameter_counts.total(shape) if has_vocabulary else parameter_counts.trunk(shape))
    shard = -(-weights // ranks)
    process = {"process": CUDA_CONTEXT_BYTES if device is Device.GPU else PROCESS_BYTES}
    forward = MemoryPeak(
        "a forward pass",
        process
        | {"weights": count * shard}
        | ({} if ranks == 1 else {"gathered": gathered_bytes(shape, size, has_vocabulary)})
        | {"activations": forward_working_bytes(shape, tokens, precision, has_vocabulary)},
    )
    if ranks == 1 or device is Device.GPU:
        return forward
    loading = MemoryPeak("loading", process | {"weights": weights + (count - 1) * shard})
    return largest_peak([forward, loading])
