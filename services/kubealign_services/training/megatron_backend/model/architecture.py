"""Model families that megatron-core supports: sizes and traits, read from a Hugging Face config. Pure.

Usage: `read_architecture(config)`, then `transformer_config.transformer_config` for megatron-core's own
config, `conversion.WeightConversion` for this rank's weights.
"""

from dataclasses import dataclass
from typing import Any

from kubealign_services.training.torch_backend.packing.packed_attention import UnsupportedTrainingModel

#: Model types in Hugging Face configs.
DENSE_FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
MIXTURE_FAMILIES = ("mixtral", "qwen2_moe", "qwen3_moe")

_SLIDING_FAMILIES = ("mistral", "mixtral", "qwen3_moe")


@dataclass(frozen=True)
class MixtureOfExperts:
    """The mixture of experts of a model.

    Attributes:
        sparse: For each layer, True when its MLP is the mixture.
        experts: Number of experts.
        top_k: Experts for each token.
        expert_size: Hidden size of an expert's MLP.
        is_normalised: True when the weights of a token's experts sum to 1.
        shared_expert_size: Size of the expert of all tokens, or 0.
    """

    sparse: tuple[bool, ...]
    experts: int
    top_k: int
    expert_size: int
    is_normalised: bool
    shared_expert_size: int


@dataclass(frozen=True)
class ModelArchitecture:
    """Sizes and traits of a model.

    Attributes:
        mlp_size: Hidden size of the dense MLP.
        windows: For each layer, the number of tokens that a token sees up to and including itself; None for
            all.
    """

    family: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    mlp_size: int
    vocabulary: int
    positions: int
    tied: bool
    qkv_bias: bool
    qk_norm: bool
    norm_epsilon: float
    initializer_range: float
    windows: tuple[int | None, ...]
    mixture: MixtureOfExperts | None = None

    def is_sparse(self, layer: int) -> bool:
        """Return True when the layer's MLP is a mixture."""
        return self.mixture is not None and self.mixture.sparse[layer]


def read_architecture(config: Any) -> ModelArchitecture:
    """Read the architecture from a Hugging Face config.

    Raises UnsupportedTrainingModel, naming the config's field, for traits that megatron-core does not
    compute as transformers does.
    """
    family = config.model_type
    if family not in DENSE_FAMILIES + MIXTURE_FAMILIES:
        raise UnsupportedTrainingModel(
            f"trainer.backend.megatron does not support model type {family!r}; it supports "
            f"{', '.join(DENSE_FAMILIES + MIXTURE_FAMILIES)}. The torch backend takes any model that runs "
            "packed"
        )
    _check_supported_traits(config)
    heads = config.num_attention_heads
    return ModelArchitecture(
        family=family,
        layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        heads=heads,
        kv_heads=config.num_key_value_heads or heads,
        head_size=getattr(config, "head_dim", None) or config.hidden_size // heads,
        mlp_size=config.intermediate_size,
        vocabulary=config.vocab_size,
        positions=config.max_position_embeddings,
        tied=bool(config.tie_word_embeddings),
        qkv_bias=family == "qwen2" or (family == "qwen2_moe" and bool(config.qkv_bias)),
        qk_norm=family in ("qwen3", "qwen3_moe"),
        norm_epsilon=config.rms_norm_eps,
        initializer_range=config.initializer_range,
        windows=_windows(config),
        mixture=_mixture(config) if family in MIXTURE_FAMILIES else None,
    )


def _check_supported_traits(config: Any) -> None:
    if config.hidden_act != "silu":
        raise _unsupported(config, "hidden_act", "silu")
    for field in ("attention_bias", "mlp_bias"):
        # For these families megatron-core has a bias at query, key and value only, or at every matrix.
        if getattr(config, field, False):
            raise _unsupported(config, field, False)
    for field in ("attention_dropout", "router_jitter_noise"):
        if getattr(config, field, 0.0):
            raise _unsupported(config, field, 0.0)
    if getattr(config, "quantization_config", None) is not None:
        raise _unsupported(config, "quantization_config", None)


def _windows(config: Any) -> tuple[int | None, ...]:
    layers: int = config.num_hidden_layers
    window: int | None = getattr(config, "sliding_window", None) or None
    if config.model_type in _SLIDING_FAMILIES:
        return (window,) * layers
    types = getattr(config, "layer_types", None) or ["full_attention"] * layers
    unknown = sorted(set(types) - {"full_attention", "sliding_attention"})
    if unknown:
        raise _unsupported(config, "layer_types", "full_attention and sliding_attention")
    return tuple(window if kind == "sliding_attention" else None for kind in types)


def _mixture(config: Any) -> MixtureOfExperts | None:
    layers = config.num_hidden_layers
    if config.model_type == "mixtral":
        sparse, experts = (True,) * layers, config.num_local_experts
        size, normalised, shared = config.intermediate_size, True, 0
    else:
        sparse = tuple(
            layer not in (config.mlp_only_layers or ()) and (layer + 1) % config.decoder_sparse_step == 0
            for layer in range(layers)
        )
        experts, size = config.num_experts, config.moe_intermediate_size
        normalised = bool(config.norm_topk_prob)
        shared = config.shared_expert_intermediate_size if config.model_type == "qwen2_moe" else 0
    if not any(sparse) or experts == 0:
        return None
    chosen = config.num_experts_per_tok
    if chosen == 1 and normalised:
        # megatron-core refuses a softmax over one expert: its weight is 1 whatever the router outputs.
        raise _unsupported(config, "num_experts_per_tok", "2 or more where their weights sum to 1")
    return MixtureOfExperts(sparse, experts, chosen, size, normalised, shared)


def _unsupported(config: Any, field: str, supported: object) -> UnsupportedTrainingModel:
    return UnsupportedTrainingModel(
        f"trainer.backend.megatron: config.json of model type {config.model_type} has {field} = "
        f"{getattr(config, field)!r}; the Megatron backend supports {supported}"
    )
