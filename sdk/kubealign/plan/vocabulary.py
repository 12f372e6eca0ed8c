"""The vocabulary's head: logits are there a chunk at a time."""

from kubealign.plan.shape import ModelShape
from kubealign.spec.precision import Precision

#: Logits of one chunk, in fp32: as training/torch_backend/chunked_logits.py has it.
CHUNK = 1 << 24


def head_working(shape: ModelShape, tokens: int, precision: Precision, tensor: int = 1) -> int:
    """Bytes that the head has in hand in its backward pass: two chunks in fp32 (and in bf16 the gradient of
    one), and the gradient of its weight before it is added."""
    vocabulary = -(-shape.vocabulary // tensor)
    rows = min(tokens, max(1, CHUNK // vocabulary))
    size = 2 if precision is Precision.BFLOAT16 else 4
    chunks = rows * vocabulary * (8 if size == 4 else 10)
    return chunks + size * vocabulary * shape.hidden
