"""Memory of the language-modelling head, whose logits are computed in chunks."""

from kubealign.planning.model.shape import ModelShape
from kubealign.spec.sections.precision import Precision

#: fp32 logits per chunk; the same as in training/torch_backend/chunked_logits.py.
LOGITS_PER_CHUNK = 1 << 24


def head_working_bytes(shape: ModelShape, tokens: int, precision: Precision, tensor: int = 1) -> int:
    """Return temporary bytes of the head's backward pass: two chunks in fp32 (in bf16 plus the gradient of
    one), and the gradient of the head's weight before it is accumulated.
    """
    vocabulary = -(-shape.vocabulary // tensor)
    rows = min(tokens, max(1, LOGITS_PER_CHUNK // vocabulary))
    size = 2 if precision is Precision.BFLOAT16 else 4
    chunks = rows * vocabulary * (8 if size == 4 else 10)
    return chunks + size * vocabulary * shape.hidden
