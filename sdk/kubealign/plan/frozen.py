"""Memory of frozen models: reference, teacher, reward."""

from kubealign.plan import parameters
from kubealign.plan.activations import layer_cost
from kubealign.plan.machine import CONTEXT, PROCESS, Device
from kubealign.plan.parts import Moment
from kubealign.plan.shape import ModelShape
from kubealign.plan.states import width
from kubealign.plan.vocabulary import CHUNK
from kubealign.spec.precision import Precision

#: Tokens per forward pass of a reward process.
REWARD_TOKENS = 8192


def forward_working(shape: ModelShape, tokens: int, precision: Precision, has_vocabulary: bool) -> int:
    """Return bytes of temporary tensors in a forward pass without gradients: one layer's tensors, or the
    logits of two chunks.
    """
    size = width(precision)
    layer = max(layer_cost(shape, index, precision).working for index in range(shape.layers))
    states = size * 3 * shape.hidden + 2 * size * shape.query_width
    rows = min(tokens, max(1, CHUNK // shape.vocabulary))
    return int(max(tokens * (layer + states), 8 * rows * shape.vocabulary * has_vocabulary))


def frozen(
    shape: ModelShape, precision: Precision, tokens: int, device: Device, has_vocabulary: bool, count: int = 1
) -> Moment:
    """Return the memory peak of `count` models of this shape in one process, unsharded, on one device."""
    weights = parameters.total(shape) if has_vocabulary else parameters.trunk(shape)
    return Moment(
        "a forward pass",
        {
            "process": CONTEXT if device is Device.GPU else PROCESS,
            "weights": count * width(precision) * weights,
            "activations": forward_working(shape, tokens, precision, has_vocabulary),
        },
    )
