"""Memory of frozen models: reference, teacher, reward."""

from kubealign.planning.machine import CUDA_CONTEXT_BYTES, PROCESS_BYTES, Device
from kubealign.planning.memory.activations import LOGITS_PER_CHUNK, layer_activations
from kubealign.planning.memory.optimizer_states import bytes_per_value
from kubealign.planning.memory.peak import MemoryPeak
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
    shape: ModelShape, precision: Precision, tokens: int, device: Device, has_vocabulary: bool, count: int = 1
) -> MemoryPeak:
    """Return the memory peak of `count` models of this shape in one process, unsharded, on one device."""
    weights = parameter_counts.total(shape) if has_vocabulary else parameter_counts.trunk(shape)
    return MemoryPeak(
        "a forward pass",
        {
            "process": CUDA_CONTEXT_BYTES if device is Device.GPU else PROCESS_BYTES,
            "weights": count * bytes_per_value(precision) * weights,
            "activations": forward_working_bytes(shape, tokens, precision, has_vocabulary),
        },
    )
