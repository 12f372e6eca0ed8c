"""The memory of a model that is only asked: reference, teacher, reward."""

from kubealign.plan import parameters
from kubealign.plan.activations import layer_cost
from kubealign.plan.machine import CONTEXT, PROCESS, Device
from kubealign.plan.parts import Moment
from kubealign.plan.shape import ModelShape
from kubealign.plan.states import width
from kubealign.plan.vocabulary import CHUNK
from kubealign.spec.precision import Precision

#: Tokens of a reward process's forward pass.
REWARD_TOKENS = 8192


def forward_working(shape: ModelShape, tokens: int, precision: Precision, has_vocabulary: bool) -> int:
    """Bytes that a forward pass without gradients has in hand: one layer's tensors, or the logits of two
    chunks."""
    size = width(precision)
    layer = max(layer_cost(shape, index, precision).working for index in range(shape.layers))
    states = size * 3 * shape.hidden + 2 * size * shape.query_width
    rows = min(tokens, max(1, CHUNK // shape.vocabulary))
    return int(max(tokens * (layer + states), 8 * rows * shape.vocabulary * has_vocabulary))


def frozen(
    shape: ModelShape, precision: Precision, tokens: int, device: Device, has_vocabulary: bool, count: int = 1
) -> Moment:
    """`count` models of this shape in one process, whole, on one device."""
    weights = parameters.total(shape) if has_vocabulary else parameters.trunk(shape)
    return Moment(
        "a forward pass",
        {
            "process": CONTEXT if device is Device.GPU else PROCESS,
            "weights": count * width(precision) * weights,
            "activations": forward_working(shape, tokens, precision, has_vocabulary),
        },
    )
