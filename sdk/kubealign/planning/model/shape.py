"""Shape of a causal language model, parsed from its Hugging Face config."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from kubealign.planning.errors import PlanError


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a decoder with grouped-query attention.

    Attributes:
        intermediate: Width of a dense layer's MLP.
        expert_intermediate: Width of one expert.
        gated: Three matrices per MLP instead of two.
        query_bias: Biases on query, key and value.
        norm_tensors: Vectors per normalisation (2: weight and bias).
        head_norms: Queries and keys are normalised per head.
        sparse: By layer, True for a mixture of experts.
    """

    model_type: str
    layers: int
    hidden: int
    heads: int
    key_heads: int
    head_width: int
    intermediate: int
    vocabulary: int
    tied: bool
    gated: bool = True
    query_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    norm_tensors: int = 1
    head_norms: bool = False
    experts: int = 0
    experts_per_token: int = 0
    expert_intermediate: int = 0
    sparse: tuple[bool, ...] = ()

    @property
    def query_width(self) -> int:
        """Width of one token's queries."""
        return self.heads * self.head_width

    @property
    def key_width(self) -> int:
        """Width of one token's keys; the same for its values."""
        return self.key_heads * self.head_width

    def is_sparse(self, layer: int) -> bool:
        """Return True if a layer's MLP is a mixture of experts."""
        return bool(self.sparse) and self.sparse[layer]

    def with_vocabulary(self, tokens: int) -> "ModelShape":
        """Return the shape with a vocabulary of `tokens` tokens."""
        return replace(self, vocabulary=tokens)


_COMMON_DEFAULTS: Mapping[str, Any] = {
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
}
#: Defaults of missing config keys by model_type, from the config classes of transformers.
_CONFIG_DEFAULTS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "llama": {**_COMMON_DEFAULTS, "intermediate_size": 11008, "vocab_size": 32000},
        "mistral": {
            **_COMMON_DEFAULTS,
            "intermediate_size": 14336,
            "vocab_size": 32000,
            "num_key_value_heads": 8,
        },
        "qwen2": {
            **_COMMON_DEFAULTS,
            "intermediate_size": 22016,
            "vocab_size": 151936,
            "num_key_value_heads": 32,
        },
        "qwen3": {
            **_COMMON_DEFAULTS,
            "intermediate_size": 22016,
            "vocab_size": 151936,
            "num_key_value_heads": 32,
            "head_dim": 128,
        },
        "mixtral": {
            **_COMMON_DEFAULTS,
            "intermediate_size": 14336,
            "vocab_size": 32000,
            "num_key_value_heads": 8,
            "num_experts_per_tok": 2,
        },
        "qwen3_moe": {
            "hidden_size": 2048,
            "num_hidden_layers": 24,
            "num_attention_heads": 32,
            "num_key_value_heads": 4,
            "intermediate_size": 6144,
            "moe_intermediate_size": 768,
            "vocab_size": 151936,
            "num_experts_per_tok": 8,
            "decoder_sparse_step": 1,
        },
        "nemotron": {
            "hidden_size": 6144,
            "num_hidden_layers": 32,
            "num_attention_heads": 48,
            "intermediate_size": 24576,
            "vocab_size": 256000,
        },
    }
)
#: Supported model families.
FAMILIES = tuple(_CONFIG_DEFAULTS)


def parse_model_shape(config: Mapping[str, Any], where: str) -> ModelShape:
    """Parse the shape from a config.json or a spec's `architecture`.

    Args:
        where: Name of the config in errors.

    Raises:
        PlanError: Unknown model family, or a size that is not a whole number above 0.
    """
    family = config.get("model_type")
    if not isinstance(family, str) or family not in _CONFIG_DEFAULTS:
        raise PlanError(f"{where}: model_type is {family!r}; a plan knows {', '.join(FAMILIES)}")
    sizes = _ConfigSizes(
        where, {**_CONFIG_DEFAULTS[family], **{k: v for k, v in config.items() if v is not None}}
    )
    hidden, heads = sizes.size("hidden_size"), sizes.size("num_attention_heads")
    if "head_dim" not in sizes.values and hidden % heads:
        raise PlanError(
            f"{where}: hidden_size is {hidden}, which {heads} num_attention_heads do not divide; "
            "a head_dim must say how wide a head is"
        )
    attention_bias = bool(sizes.values.get("attention_bias", False))
    shape = ModelShape(
        model_type=family,
        layers=sizes.size("num_hidden_layers"),
        hidden=hidden,
        heads=heads,
        key_heads=sizes.size("num_key_value_heads", heads),
        head_width=sizes.size("head_dim", hidden // heads),
        intermediate=sizes.size("intermediate_size"),
        vocabulary=sizes.size("vocab_size"),
        tied=bool(sizes.values.get("tie_word_embeddings", False)),
        gated=family != "nemotron",
        query_bias=attention_bias or family == "qwen2",
        output_bias=attention_bias and family != "qwen2",
        mlp_bias=bool(sizes.values.get("mlp_bias", False)),
        norm_tensors=2 if family == "nemotron" else 1,
        head_norms=family in ("qwen3", "qwen3_moe"),
    )
    return _with_experts(shape, sizes)


def _with_experts(shape: ModelShape, sizes: "_ConfigSizes") -> ModelShape:
    if shape.model_type == "mixtral":
        return replace(
            shape,
            experts=sizes.experts(8),
            experts_per_token=sizes.size("num_experts_per_tok"),
            expert_intermediate=shape.intermediate,
            sparse=(True,) * shape.layers,
        )
    if shape.model_type == "qwen3_moe":
        step, dense = sizes.size("decoder_sparse_step"), sizes.values.get("mlp_only_layers") or ()
        return replace(
            shape,
            experts=sizes.experts(128),
            experts_per_token=sizes.size("num_experts_per_tok"),
            expert_intermediate=sizes.size("moe_intermediate_size"),
            sparse=tuple(i not in dense and (i + 1) % step == 0 for i in range(shape.layers)),
        )
    return shape


@dataclass(frozen=True)
class _ConfigSizes:
    where: str
    values: Mapping[str, Any]

    def experts(self, default: int) -> int:
        """Return the number of experts; both config keys occur in all families."""
        name = "num_local_experts" if "num_local_experts" in self.values else "num_experts"
        return self.size(name, default)

    def size(self, name: str, default: int | None = None) -> int:
        """Return a size from the config. Raises PlanError."""
        value = self.values.get(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise PlanError(f"{self.where}: {name} is {value!r}; it must be a whole number above 0")
        return value
