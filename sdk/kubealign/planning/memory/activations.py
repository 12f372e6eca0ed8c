"""Activation memory: bytes per token and layer that the forward pass saves for the backward pass.

Follows "Reducing Activation Recomputation in Large Transformer Models" (Korthikanti et al. 2022, table 2),
whose formula is for a GPT in bf16 with a GELU MLP of four times the width, and dropout. The models trained
here have none of these, and their attention saves no score matrix, so `LayerActivations` counts the tensors
one by one.
"""

from dataclasses import dataclass

from kubealign.planning.memory.optimizer_states import bytes_per_value
from kubealign.planning.model.shape import ModelShape
from kubealign.spec.sections.megatron import Recompute
from kubealign.spec.sections.precision import Precision

#: fp32 logits per chunk; the same as in training/torch_backend/logprobs/chunked_logits.py.
LOGITS_PER_CHUNK = 1 << 24


@dataclass(frozen=True)
class LayerActivations:
    """Activation bytes per token of one layer.

    Attributes:
        shared: Tensors replicated on tensor-parallel ranks; divided with sequence parallelism.
        split: Tensors divided over tensor-parallel ranks.
        core: Part of `split` that is saved if the attention's core is recomputed from its inputs.
        entry: The layer's input.
        working: Additional tensors during the layer's backward pass.
    """

    shared: float
    split: float
    core: float
    entry: float
    working: float

    def saved_bytes(self, tensor: int, sequence_parallel: bool, recompute: Recompute) -> float:
        """Return bytes per token saved until the backward pass, on one of `tensor` ranks."""
        common = tensor if sequence_parallel else 1
        if recompute is Recompute.LAYERS:
            return self.entry / common
        split = self.split - (self.core if recompute is Recompute.ATTENTION else 0)
        return self.shared / common + split / tensor


def layer_activations(
    shape: ModelShape, layer: int, precision: Precision, fused: bool = False
) -> LayerActivations:
    """Return the activation bytes of one layer, from the tensors that autograd saves.

    A norm saves its input, the input divided by its root mean square, and the result; in 16 bits the first
    in fp32. Attention saves queries, keys and values, the latter two repeated to the number of query heads,
    its result (of which the next layer's input is a copy) and its normalisers in fp32. A gated MLP saves
    both projections, the activation and the product; an ungated MLP saves two tensors.

    Args:
        fused: The torch backend's fused layers in fp32, which recompute the division of a norm, and the
            activation and product of a gated MLP.
    """
    size = bytes_per_value(precision)
    norm_bytes = 4 + size * (1 if fused else 2)
    queries, keys = shape.query_width, shape.key_width
    inside = size * (3 * queries + queries) + 4 * shape.heads
    core = inside - size * (queries + 2 * keys)
    attention = inside + size * queries + norm_bytes * (queries + keys) * shape.head_norms
    shared, factor = 2 * norm_bytes * shape.hidden, 4 if shape.gated and not fused else 2
    if shape.is_sparse(layer):
        # Each token visits several experts; dispatch and combine copy the token's state as well.
        active = shape.experts_per_token
        mlp = size * active * (4 * shape.expert_intermediate + 2 * shape.hidden)
        shared += 4 * 2 * shape.experts
        width = active * shape.expert_intermediate
    else:
        mlp, width = size * factor * shape.intermediate, shape.intermediate
    working = size * ((3 if shape.gated else 2) * width + shape.hidden)
    return LayerActivations(shared, attention + mlp, core, size * shape.hidden, working)


def output_activations(shape: ModelShape, precision: Precision, has_head: bool) -> float:
    """Return bytes per token outside the layers: the final norm, and the head's input and its gradient."""
    size = bytes_per_value(precision)
    norm = (4 + size) * shape.hidden
    return norm + 2 * size * shape.hidden if has_head else norm + 2 * 4 * shape.hidden


def head_working_bytes(shape: ModelShape, tokens: int, precision: Precision, tensor: int = 1) -> int:
    """Return temporary bytes of the head's backward pass, which computes the logits in chunks.

    The bytes are two chunks in fp32 (in 16 bits plus the gradient of one), and the gradient of the head's
    weight before it is accumulated.
    """
    vocabulary = -(-shape.vocabulary // tensor)
    rows = min(tokens, max(1, LOGITS_PER_CHUNK // vocabulary))
    size = bytes_per_value(precision)
    chunks = rows * vocabulary * (8 if size == 4 else 10)
    return chunks + size * vocabulary * shape.hidden
