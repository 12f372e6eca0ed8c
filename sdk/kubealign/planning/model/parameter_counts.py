"""Parameter counts of a model by part (not bytes)."""

from collections.abc import Iterable, Iterator

from kubealign.planning.model.shape import ModelShape
from kubealign.spec.sections.training import Lora, LoraLayerKind, names_experts

_ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")


def embedding(shape: ModelShape) -> int:
    """Return the parameters of the token embedding."""
    return shape.vocabulary * shape.hidden


def head(shape: ModelShape) -> int:
    """Return the parameters of the language-modelling head; 0 if tied to the embedding."""
    return 0 if shape.tied else embedding(shape)


def attention(shape: ModelShape) -> int:
    """Return the parameters of one layer's attention, including query and key norms."""
    matrices = sum(inputs * outputs for name, inputs, outputs in linear_layers(shape) if name in _ATTENTION)
    biases = (shape.query_width + 2 * shape.key_width) * shape.query_bias + shape.hidden * shape.output_bias
    return matrices + biases + 2 * shape.head_width * shape.head_norms


def dense_mlp(shape: ModelShape) -> int:
    """Return the parameters of a layer's dense MLP."""
    matrices = 3 if shape.gated else 2
    biases = ((matrices - 1) * shape.intermediate + shape.hidden) * shape.mlp_bias
    return matrices * shape.hidden * shape.intermediate + biases


def expert(shape: ModelShape) -> int:
    """Return the parameters of one expert."""
    return 3 * shape.hidden * shape.expert_intermediate


def norm(shape: ModelShape) -> int:
    """Return the parameters of one normalisation of the hidden states."""
    return shape.norm_tensors * shape.hidden


def layer(shape: ModelShape, index: int) -> int:
    """Return the parameters of one layer."""
    if shape.is_sparse(index):
        mlp = shape.experts * expert(shape) + shape.experts * shape.hidden
    else:
        mlp = dense_mlp(shape)
    return attention(shape) + mlp + 2 * norm(shape)


def total(shape: ModelShape) -> int:
    """Return the parameters of the causal language model, tied ones counted once."""
    layers = sum(layer(shape, index) for index in range(shape.layers))
    return embedding(shape) + layers + norm(shape) + head(shape)


def trunk(shape: ModelShape) -> int:
    """Return the parameters without the language-modelling head: the trunk of a critic or reward model."""
    return total(shape) - head(shape)


def linear_layers(shape: ModelShape) -> Iterator[tuple[str, int, int]]:
    """Yield (name, inputs, outputs) of the linear layers of one dense layer."""
    yield "q_proj", shape.hidden, shape.query_width
    yield "k_proj", shape.hidden, shape.key_width
    yield "v_proj", shape.hidden, shape.key_width
    yield "o_proj", shape.query_width, shape.hidden
    if shape.gated:
        yield "gate_proj", shape.hidden, shape.intermediate
    yield "up_proj", shape.hidden, shape.intermediate
    yield "down_proj", shape.intermediate, shape.hidden


def adapter(shape: ModelShape, lora: Lora, layers: Iterable[int] | None = None) -> int:
    """Return the trainable parameters of a LoRA adapter: rank x (inputs + outputs) per adapted layer (Hu et
    al. 2021).

    DoRA adds one magnitude per output. Each expert of an adapted stacked weight has matrices of its own.

    Args:
        layers: Layer indices; None: all layers.
    """
    count = 0
    for index in range(shape.layers) if layers is None else layers:
        for name, inputs, outputs in linear_layers(shape):
            in_attention = is_attention(name)
            if (in_attention or not shape.is_sparse(index)) and _adapted(name, in_attention, lora):
                count += lora.rank * (inputs + outputs) + outputs * lora.dora
        if shape.is_sparse(index):
            count += sum(
                shape.experts * lora.rank * (inputs + outputs)
                for name, inputs, outputs in stacked_experts(shape)
                if _adapts_experts(name, lora)
            )
    return count


def stacked_experts(shape: ModelShape) -> Iterator[tuple[str, int, int]]:
    """Yield (name, inputs, outputs) of one expert's part of the stacked weights of a layer."""
    yield "experts.gate_up_proj", shape.hidden, 2 * shape.expert_intermediate
    yield "experts.down_proj", shape.expert_intermediate, shape.hidden


def is_attention(name: str) -> bool:
    """Return True for a linear layer of the attention."""
    return name in _ATTENTION


def _adapts_experts(name: str, lora: Lora) -> bool:
    targets = lora.targets
    if targets.names is None:
        return targets.kind is LoraLayerKind.EXPERTS
    return any(names_experts(end) and end.endswith(name) for end in targets.names)


def _adapted(name: str, in_attention: bool, lora: Lora) -> bool:
    targets = lora.targets
    if targets.names is not None:
        names = [end for end in targets.names if not names_experts(end)]
        return any(name.endswith(end) or end.endswith(name) for end in names)
    if targets.kind is LoraLayerKind.EXPERTS:
        return False
    return targets.kind is LoraLayerKind.ALL_LINEAR or in_attention == (
        targets.kind is LoraLayerKind.ATTENTION
    )
