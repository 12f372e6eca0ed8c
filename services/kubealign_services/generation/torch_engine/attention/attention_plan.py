"""The engine's attention: the function that model layers call, and the plans that describe one forward pass.

Tokens of all sequences are concatenated into one row, [1, tokens]; the plan of the pass knows which tokens
belong together, and which pages hold their keys and values. It reaches the layers through the model's
keyword arguments.
"""

from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from kubealign_services.generation.torch_engine.kv_cache.paged_kv_cache import LayerKVShape
from kubealign_services.training.softcapped_attention import softcapped_attention

ATTENTION_NAME = "kubealign_engine"

# Arguments of layers that do not change the result: the plan knows the positions, and evaluation has no
# dropout.
IGNORED_OPTIONS = frozenset(
    {"dropout", "position_ids", "cache_position", "use_cache", "output_attentions", "output_hidden_states"}
    | {"return_dict", "position_embeddings", "logits_to_keep"}
)


class UnsupportedEngineModel(ValueError):
    """The model needs a feature that this engine does not have; the message names it."""


class EngineAttentionPlan(Protocol):
    """Computes the attention of one forward pass."""

    def attend(
        self,
        layer: int,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        scaling: float | None,
        window: int | None,
        softcap: float | None = None,
    ) -> Tensor:
        """Return [tokens, heads, value width].

        Args:
            queries: [heads, tokens, width].
            keys: [key heads, tokens, width].
            values: [key heads, tokens, value width].
            window: A token sees itself and the window - 1 tokens before it; None: all tokens before it.
            softcap: Scores s become softcap * tanh(s / softcap) (Gemma 2); None: they stay as they are.
        """


def engine_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    is_causal: bool | None = None,
    softcap: float | None = None,
    kubealign_plan: EngineAttentionPlan | None = None,
    **options: object,
) -> tuple[Tensor, None]:
    """Compute attention through transformers' attention interface.

    query [1, heads, tokens, width], key and value [1, key heads, tokens, width] -> ([1, tokens, heads,
    value width], None). Raises UnsupportedEngineModel for an option that would change the result.
    """
    name = type(module).__name__
    if kubealign_plan is None:
        raise UnsupportedEngineModel(
            f"{name} does not pass its keyword arguments on to the attention function"
        )
    if attention_mask is not None or is_causal is False or not getattr(module, "is_causal", True):
        raise UnsupportedEngineModel(f"{name} is not causal, or brings a mask of its own")
    for option, setting in options.items():
        if option not in IGNORED_OPTIONS and setting is not None and setting is not False:
            raise UnsupportedEngineModel(
                f"{name} asks for the attention option {option}, which this engine does not have"
            )
    layer = getattr(module, "layer_idx", None)
    if not isinstance(layer, int):
        raise UnsupportedEngineModel(f"{name} has no layer_idx, so its keys and values cannot be cached")
    out = kubealign_plan.attend(layer, query[0], key[0], value[0], scaling, sliding_window, softcap)
    return out[None], None


# No mask function is registered: transformers then builds no mask, and the plan builds the one it needs.
AttentionInterface.register(ATTENTION_NAME, engine_attention)


@dataclass(frozen=True)
class LayerAttention:
    """Attention requirements of a layer: `heads` query heads over its cached keys and values, within its
    window, with capped scores.
    """

    heads: int
    kv_shape: LayerKVShape
    window: int | None
    softcap: float | None = None


@dataclass
class ProbePlan:
    """Records the requirements of each layer and returns zeros."""

    layers: dict[int, LayerAttention] = field(default_factory=dict)

    def attend(
        self,
        layer: int,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        scaling: float | None,
        window: int | None,
        softcap: float | None = None,
    ) -> Tensor:
        if layer in self.layers:
            raise UnsupportedEngineModel(f"layer_idx {layer} belongs to two attention layers")
        if queries.shape[0] % keys.shape[0]:
            raise UnsupportedEngineModel(
                f"{queries.shape[0]} query heads cannot share {keys.shape[0]} key heads"
            )
        kv_shape = LayerKVShape(keys.shape[0], keys.shape[2], values.shape[2])
        self.layers[layer] = LayerAttention(queries.shape[0], kv_shape, window, softcap)
        return values.new_zeros(queries.shape[1], queries.shape[0], values.shape[2])


class FullSequencePlan:
    """Attention of one complete sequence over itself: no page is read or written."""

    def attend(
        self,
        layer: int,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        scaling: float | None,
        window: int | None,
        softcap: float | None = None,
    ) -> Tensor:
        length = queries.shape[1]
        windowed = window is not None and window < length
        if softcap is not None:
            mask = _window_mask(length, window if window is not None else length, queries.device)
            return softcapped_attention(queries[None], keys[None], values[None], mask, scaling, softcap)[
                0
            ].transpose(0, 1)
        out = scaled_dot_product_attention(
            queries[None],
            keys[None],
            values[None],
            attn_mask=_window_mask(length, window, queries.device)
            if windowed and window is not None
            else None,
            is_causal=not windowed,
            scale=scaling,
            enable_gqa=queries.shape[0] != keys.shape[0],
        )
        return out[0].transpose(0, 1)


def _window_mask(length: int, window: int, device: torch.device) -> Tensor:
    """Return a bool mask [length, length]: row q sees column k where q - window < k <= q."""
    position = torch.arange(length, device=device)
    return (position <= position[:, None]) & (position > position[:, None] - window)
