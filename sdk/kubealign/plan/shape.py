"""The shape of a causal language model, from its Hugging Face config."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from kubealign.plan.errors import PlanError


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a decoder with grouped-query attention.

    intermediate: width of a dense layer's MLP; expert_intermediate: of one expert. gated: three matrices an
    MLP instead of two. query_bias: on query, key and value. norm_tensors: vectors a normalisation holds (2:
    weight and bias). head_norms: queries and keys are normalised by head. sparse: which layers are mixtures.
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
        """Numbers of one token's queries."""
        return self.heads * self.head_width

    @property
    def key_width(self) -> int:
        """Numbers of one token's keys; its values have as many."""
        return self.key_heads * self.head_width

    def is_sparse(self, layer: int) -> bool:
        """Whether a layer's MLP is a mixture of experts."""
        return bool(self.sparse) and self.sparse[layer]

    def with_vocabulary(self, tokens: int) -> "ModelShape":
        """The same with a vocabulary of so many tokens."""
        return replace(self, vocabulary=tokens)


_COMMON: Mapping[str, Any] = {"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32}
#: By model_type, what a config that does not say means; as the configs' classes have it.
_DEFAULTS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "llama": {**_COMMON, "intermediate_size": 11008, "vocab_size": 32000},
        "mistral": {
            **_COMMON,
            "intermediate_size": 14336,
            "vocab_size": 32000,
            "num_key_value_heads": 8,
        },
        "qwen2": {
            **_COMMON,
            "intermediate_size": 22016,
            "vocab_size": 151936,
            "num_key_value_heads": 32,
        },
        "qwen3": {
            **_COMMON,
            "intermediate_size": 22016,
            "vocab_size": 151936,
            "num_key_value_heads": 32,
            "head_dim": 128,
        },
        "mixtral": {
            **_COMMON,
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
#: Whose shapes are known.
FAMILIES = tuple(_DEFAULTS)


def shape_of(config: Mapping[str, Any], where: str) -> ModelShape:
    """The shape that a config.json, or a spec's `architecture`, describes. where: what to call it in an
    error. Raises PlanError for a family that is not known, or a size that is no whole number above 0."""
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in _DEFAULTS:
        raise PlanError(f"{where}: model_type is {kind!r}; a plan knows {', '.join(FAMILIES)}")
    given = _Sizes(where, {**_DEFAULTS[kind], **{k: v for k, v in config.items() if v is not None}})
    hidden, heads = given.size("hidden_size"), given.size("num_attention_heads")
    if "head_dim" not in given.values and hidden % heads:
        raise PlanError(
            f"{where}: hidden_size is {hidden}, which {heads} num_attention_heads do not divide; "
            "a head_dim must say how wide a head is"
        )
    attention_bias = bool(given.values.get("attention_bias", False))
    shape = ModelShape(
        model_type=kind,
        layers=given.size("num_hidden_layers"),
        hidden=hidden,
        heads=heads,
        key_heads=given.size("num_key_value_heads", heads),
        head_width=given.size("head_dim", hidden // heads),
        intermediate=given.size("intermediate_size"),
        vocabulary=given.size("vocab_size"),
        tied=bool(given.values.get("tie_word_embeddings", False)),
        gated=kind != "nemotron",
        query_bias=attention_bias or kind == "qwen2",
        output_bias=attention_bias and kind != "qwen2",
        mlp_bias=bool(given.values.get("mlp_bias", False)),
        norm_tensors=2 if kind == "nemotron" else 1,
        head_norms=kind in ("qwen3", "qwen3_moe"),
    )
    return _with_experts(shape, given)


def _with_experts(shape: ModelShape, given: "_Sizes") -> ModelShape:
    if shape.model_type == "mixtral":
        return replace(
            shape,
            experts=given.experts(8),
            experts_per_token=given.size("num_experts_per_tok"),
            expert_intermediate=shape.intermediate,
            sparse=(True,) * shape.layers,
        )
    if shape.model_type == "qwen3_moe":
        step, dense = given.size("decoder_sparse_step"), given.values.get("mlp_only_layers") or ()
        return replace(
            shape,
            experts=given.experts(128),
            experts_per_token=given.size("num_experts_per_tok"),
            expert_intermediate=given.size("moe_intermediate_size"),
            sparse=tuple(i not in dense and (i + 1) % step == 0 for i in range(shape.layers)),
        )
    return shape


@dataclass(frozen=True)
class _Sizes:
    where: str
    values: Mapping[str, Any]

    def experts(self, default: int) -> int:
        """They go by either name, whatever the family."""
        name = "num_local_experts" if "num_local_experts" in self.values else "num_experts"
        return self.size(name, default)

    def size(self, name: str, default: int | None = None) -> int:
        value = self.values.get(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise PlanError(f"{self.where}: {name} is {value!r}; it must be a whole number above 0")
        return value
