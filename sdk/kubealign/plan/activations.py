"""What a forward pass keeps for the backward pass, in bytes a token of one layer.

`korthikanti` is the formula of "Reducing Activation Recomputation in Large Transformer Models" (Korthikanti
et al. 2022, table 2), for its GPT: bf16, a GELU MLP of four times the width, dropout. What is trained here
has none of that, and attention that keeps no scores, so `LayerCost` counts its tensors one by one.
"""

from dataclasses import dataclass

from kubealign.plan.shape import ModelShape
from kubealign.spec.megatron import Recompute
from kubealign.spec.precision import Precision


def korthikanti(
    hidden: int, heads: int, sequence: int, tensor: int, sequence_parallel: bool, recompute: Recompute
) -> float:
    """Bytes a token of one layer: with t = tensor, s = sequence, a = heads, h = hidden,
    h (10 + 24/t + 5as/(ht)); with sequence parallelism h (34 + 5as/h)/t; without the attention's core the
    last term falls away; where layers are computed again 2h (over t with sequence parallelism)."""
    if recompute is Recompute.LAYERS:
        return 2 * hidden / (tensor if sequence_parallel else 1)
    scores = 0.0 if recompute is Recompute.ATTENTION else 5 * heads * sequence / tensor
    fixed = 34 / tensor if sequence_parallel else 10 + 24 / tensor
    return hidden * fixed + scores


@dataclass(frozen=True)
class LayerCost:
    """Bytes a token. shared: what tensor ranks repeat (sequence-parallel ones divide it); split: what they
    divide; core: of split, what is saved where the attention's core is computed again from its inputs.
    entry: the layer's input alone. working: what its backward pass has in hand besides."""

    shared: float
    split: float
    core: float
    entry: float
    working: float

    def kept(self, tensor: int, sequence_parallel: bool, recompute: Recompute) -> float:
        """Bytes a token that stay until the backward pass, on one of `tensor` ranks."""
        common = tensor if sequence_parallel else 1
        if recompute is Recompute.LAYERS:
            return self.entry / common
        split = self.split - (self.core if recompute is Recompute.ATTENTION else 0)
        return self.shared / common + split / tensor


def layer_cost(shape: ModelShape, layer: int, precision: Precision, lean: bool = False) -> LayerCost:
    """Of one layer, from the tensors that autograd holds. lean: the torch backend's in fp32, which computes
    again what is cheap: of a norm the division, of a gated MLP activation and product.

    A norm keeps its input, the input divided by its root mean square, and the result; in bf16 the first in
    fp32. Attention keeps queries, keys and values, both repeated to the number of queries' heads, its result
    (which the next layer's input is a copy of) and its normalisers in fp32. A gated MLP keeps both
    projections, the activation and the product; another one two.
    """
    size = 2 if precision is Precision.BFLOAT16 else 4
    kept_in_norm = 4 + size * (1 if lean else 2)
    queries, keys = shape.query_width, shape.key_width
    inside = size * (3 * queries + queries) + 4 * shape.heads
    core = inside - size * (queries + 2 * keys)
    attention = inside + size * queries + kept_in_norm * (queries + keys) * shape.head_norms
    shared, factor = 2 * kept_in_norm * shape.hidden, 4 if shape.gated and not lean else 2
    if shape.is_sparse(layer):
        # Each token visits several experts; its way in and out of them is copied too.
        active = shape.experts_per_token
        mlp = size * active * (4 * shape.expert_intermediate + 2 * shape.hidden)
        shared += 4 * 2 * shape.experts
        width = active * shape.expert_intermediate
    else:
        mlp, width = size * factor * shape.intermediate, shape.intermediate
    working = size * ((3 if shape.gated else 2) * width + shape.hidden)
    return LayerCost(shared, attention + mlp, core, size * shape.hidden, working)


def ends(shape: ModelShape, precision: Precision, has_head: bool) -> float:
    """Bytes a token outside the layers of the last stage: the final norm, and of the head the states that it
    reads and their gradient."""
    size = 2 if precision is Precision.BFLOAT16 else 4
    norm = (4 + size) * shape.hidden
    return norm + 2 * size * shape.hidden if has_head else norm + 2 * 4 * shape.hidden
