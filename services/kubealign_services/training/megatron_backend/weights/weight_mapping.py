"""The weight mapping: for each parameter of megatron-core, the Hugging Face tensors that it is made of, and
its division over tensor-parallel ranks.

`{layer}` and `{expert}` are numbered over the whole model. Sizes are names from `dimension_sizes`.
"""

from dataclasses import dataclass
from enum import StrEnum

from kubealign_services.training.megatron_backend.model.architecture import ModelArchitecture
from kubealign_services.training.megatron_backend.weights.parameter_names import IN_EXPERT, IN_LAYER


class TensorSplit(StrEnum):
    """Division of a parameter over the tensor ranks.

    WHOLE: every rank has all. VOCABULARY: rows, padded at the end. COLUMN: rows. ROW: columns
    (megatron-core's words describe the transposed matrix). QKV: rows; for each group of heads its queries,
    its key, its value. GATE_UP: a rank's rows of the gate, then those of up.
    """

    WHOLE = "whole"
    VOCABULARY = "vocabulary"
    COLUMN = "column"
    ROW = "row"
    QKV = "qkv"
    GATE_UP = "gate_up"


@dataclass(frozen=True)
class CheckpointTensor:
    """A checkpoint tensor: its name and the sizes of its dimensions."""

    name: str
    sizes: tuple[str, ...]


@dataclass(frozen=True)
class MappingRow:
    """The mapping of one parameter.

    Attributes:
        parameter: megatron-core's name.
    """

    parameter: str
    split: TensorSplit
    tensors: tuple[CheckpointTensor, ...]


def dimension_sizes(shape: ModelArchitecture, scores: int, rank: int) -> dict[str, int]:
    """Return the size names of the mapping and their values, for a model with this number of scores and this
    adapter rank.
    """
    mixture = shape.mixture
    return {
        "one": 1,
        "scores": scores,
        "rank": rank,
        "vocabulary": shape.vocabulary,
        "hidden": shape.hidden,
        "queries": shape.heads * shape.head_size,
        "keys": shape.kv_heads * shape.head_size,
        "head": shape.head_size,
        "mlp": shape.mlp_size,
        "experts": mixture.experts if mixture else 0,
        "expert": mixture.expert_size if mixture else 0,
        "shared": mixture.shared_expert_size if mixture else 0,
    }


def _row(parameter: str, split: TensorSplit, *tensors: str) -> MappingRow:
    """Parse a row.

    Args:
        tensors: `NAME: SIZE x SIZE`.
    """
    parsed = (text.split(": ") for text in tensors)
    return MappingRow(
        parameter, split, tuple(CheckpointTensor(name, tuple(words.split(" x "))) for name, words in parsed)
    )


_EMBED_TOKENS = "model.embed_tokens.weight: vocabulary x hidden"

EMBEDDING = _row("embedding.word_embeddings.weight", TensorSplit.VOCABULARY, _EMBED_TOKENS)
FINAL_NORM = _row("decoder.final_layernorm.weight", TensorSplit.WHOLE, "model.norm.weight: hidden")
OUTPUT = _row("output_layer.weight", TensorSplit.VOCABULARY, "lm_head.weight: vocabulary x hidden")
TIED_OUTPUT = _row("output_layer.weight", TensorSplit.VOCABULARY, _EMBED_TOKENS)
SCORE = _row("score.weight", TensorSplit.WHOLE, "score.weight: scores x hidden")

_HF = "model.layers.{layer}."

ATTENTION = (
    _row(IN_LAYER + "input_layernorm.weight", TensorSplit.WHOLE, _HF + "input_layernorm.weight: hidden"),
    _row(
        IN_LAYER + "self_attention.linear_qkv.weight",
        TensorSplit.QKV,
        _HF + "self_attn.q_proj.weight: queries x hidden",
        _HF + "self_attn.k_proj.weight: keys x hidden",
        _HF + "self_attn.v_proj.weight: keys x hidden",
    ),
    _row(
        IN_LAYER + "self_attention.linear_proj.weight",
        TensorSplit.ROW,
        _HF + "self_attn.o_proj.weight: hidden x queries",
    ),
    _row(
        IN_LAYER + "pre_mlp_layernorm.weight",
        TensorSplit.WHOLE,
        _HF + "post_attention_layernorm.weight: hidden",
    ),
)

QKV_BIAS = (
    _row(
        IN_LAYER + "self_attention.linear_qkv.bias",
        TensorSplit.QKV,
        _HF + "self_attn.q_proj.bias: queries",
        _HF + "self_attn.k_proj.bias: keys",
        _HF + "self_attn.v_proj.bias: keys",
    ),
)

QK_NORM = (
    _row(
        IN_LAYER + "self_attention.q_layernorm.weight",
        TensorSplit.WHOLE,
        _HF + "self_attn.q_norm.weight: head",
    ),
    _row(
        IN_LAYER + "self_attention.k_layernorm.weight",
        TensorSplit.WHOLE,
        _HF + "self_attn.k_norm.weight: head",
    ),
)


def _mlp(
    parameter: str, tensor: str, size: str, gate: str, up: str, down: str
) -> tuple[MappingRow, MappingRow]:
    return (
        _row(
            IN_LAYER + parameter + "linear_fc1.weight",
            TensorSplit.GATE_UP,
            f"{_HF}{tensor}{gate}.weight: {size} x hidden",
            f"{_HF}{tensor}{up}.weight: {size} x hidden",
        ),
        _row(
            IN_LAYER + parameter + "linear_fc2.weight",
            TensorSplit.ROW,
            f"{_HF}{tensor}{down}.weight: hidden x {size}",
        ),
    )


_LLAMA_MLP = ("gate_proj", "up_proj", "down_proj")

MLP = _mlp("mlp.", "mlp.", "mlp", *_LLAMA_MLP)

_ROUTER = IN_LAYER + "mlp.router.weight"

MIXTRAL = (
    _row(_ROUTER, TensorSplit.WHOLE, _HF + "block_sparse_moe.gate.weight: experts x hidden"),
    *_mlp(IN_EXPERT, "block_sparse_moe.experts.{expert}.", "expert", "w1", "w3", "w2"),
)

QWEN_MIXTURE = (
    _row(_ROUTER, TensorSplit.WHOLE, _HF + "mlp.gate.weight: experts x hidden"),
    *_mlp(IN_EXPERT, "mlp.experts.{expert}.", "expert", *_LLAMA_MLP),
)

SHARED_EXPERT = (
    *_mlp("mlp.shared_experts.", "mlp.shared_expert.", "shared", *_LLAMA_MLP),
    _row(
        IN_LAYER + "mlp.shared_experts.gate_weight",
        TensorSplit.WHOLE,
        _HF + "mlp.shared_expert_gate.weight: one x hidden",
    ),
)


def attention_rows(shape: ModelArchitecture) -> tuple[MappingRow, ...]:
    """Return the rows of every layer's attention, its two norms included."""
    return ATTENTION + (QKV_BIAS if shape.qkv_bias else ()) + (QK_NORM if shape.qk_norm else ())


def mlp_rows(shape: ModelArchitecture, layer: int) -> tuple[MappingRow, ...]:
    """Return the rows of the layer's MLP, dense or a mixture."""
    if shape.mixture is None or not shape.is_sparse(layer):
        return MLP
    routed = MIXTRAL if shape.family == "mixtral" else QWEN_MIXTURE
    return routed + (SHARED_EXPERT if shape.mixture.shared_expert_size else ())
