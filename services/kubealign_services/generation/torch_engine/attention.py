"""The attention of the engine: what a model's layers call, and the plans that say what one forward pass does.

Tokens of all sequences lie one after another in one row, [1, tokens]; the plan of the pass knows which belong
together. It reaches the layers through the model's keyword arguments, and is where a paged cache or chunked
prefill would come in.
"""

from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from kubealign_services.generation.torch_engine.cache import KeyValueCache, LayerShape

ATTENTION = "kubealign_engine"

# What layers hand over that does not change the result: the plan knows the positions, and nothing is dropped
# in evaluation.
HARMLESS = frozenset(
    {"dropout", "position_ids", "cache_position", "use_cache", "output_attentions", "output_hidden_states"}
    | {"return_dict", "position_embeddings", "logits_to_keep"}
)


class UnsupportedModel(ValueError):
    """The model needs something that this engine does not compute; it says what."""


class AttentionPlan(Protocol):
    """What the attention of one forward pass does."""

    def attend(
        self,
        layer: int,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        scaling: float | None,
        window: int | None,
    ) -> Tensor:
        """queries [heads, tokens, width], keys and values [key heads, tokens, width] -> [tokens, heads, value
        width]. window: a token sees itself and the window - 1 tokens before it; None: all before it."""


def engine_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    is_causal: bool | None = None,
    kubealign_plan: AttentionPlan | None = None,
    **options: object,
) -> tuple[Tensor, None]:
    """Transformers' attention interface: query [1, heads, tokens, width], key and value [1, key heads,
    tokens, width] -> ([1, tokens, heads, value width], None). Raises UnsupportedModel for an option that
    would change the result."""
    name = type(module).__name__
    if kubealign_plan is None:
        raise UnsupportedModel(f"{name} does not hand its keyword arguments on to the attention function")
    if attention_mask is not None or is_causal is False or not getattr(module, "is_causal", True):
        raise UnsupportedModel(f"{name} is not causal, or brings a mask of its own")
    for option, setting in options.items():
        if option not in HARMLESS and setting is not None and setting is not False:
            raise UnsupportedModel(
                f"{name} asks for the attention option {option}, which this engine does not have"
            )
    layer = getattr(module, "layer_idx", None)
    if not isinstance(layer, int):
        raise UnsupportedModel(f"{name} has no layer_idx, so its keys and values cannot be cached")
    out = kubealign_plan.attend(layer, query[0], key[0], value[0], scaling, sliding_window)
    return out[None], None


# No mask function goes with it: without one, transformers makes no mask, and the plan makes what it needs.
AttentionInterface.register(ATTENTION, engine_attention)


@dataclass
class ProbePlan:
    """Attends to nothing; notes what each layer keeps, and its window."""

    layers: dict[int, LayerShape] = field(default_factory=dict)
    windows: dict[int, int | None] = field(default_factory=dict)

    def attend(
        self,
        layer: int,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        scaling: float | None,
        window: int | None,
    ) -> Tensor:
        if layer in self.layers:
            raise UnsupportedModel(f"layer_idx {layer} belongs to two attention layers")
        if queries.shape[0] % keys.shape[0]:
            raise UnsupportedModel(f"{queries.shape[0]} query heads cannot share {keys.shape[0]} key heads")
        self.layers[layer] = LayerShape(keys.shape[0], keys.shape[2], values.shape[2])
        self.windows[layer] = window
        return values.new_zeros(queries.shape[1], queries.shape[0], values.shape[2])


@dataclass(frozen=True)
class PromptRun:
    """Prompts of one length, one after another from token `start` on, each cached for all its samples at
    once.

    slots: the cache's slots, or None to cache nothing. copies [slots] int64: which of the run's prompts each
    slot takes.
    """

    start: int
    prompts: int
    length: int
    slots: slice | None = None
    copies: Tensor | None = None


class PromptPlan:
    """Whole prompts, attended to among themselves. Runs of equal length need no padding, hence no mask but
    the causal one."""

    def __init__(self, runs: list[PromptRun], cache: KeyValueCache | None = None) -> None:
        self._runs = runs
        self._cache = cache

    def attend(
        self,
        layer: int,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        scaling: float | None,
        window: int | None,
    ) -> Tensor:
        out = values.new_empty(queries.shape[1], queries.shape[0], values.shape[2])
        for run in self._runs:
            q, k, v = (_split(states, run) for states in (queries, keys, values))
            windowed = window is not None and window < run.length
            result = scaled_dot_product_attention(
                q,
                k,
                v,
                attn_mask=_band(run.length, window, q.device) if windowed and window is not None else None,
                is_causal=not windowed,
                scale=scaling,
                enable_gqa=q.shape[1] != k.shape[1],
            )
            tokens = slice(run.start, run.start + run.prompts * run.length)
            out[tokens] = result.transpose(1, 2).flatten(0, 1)
            if self._cache is not None and run.slots is not None:
                if run.copies is not None:
                    k, v = k[run.copies], v[run.copies]
                self._cache.write_prompts(layer, run.slots, k, v)
        return out


class DecodePlan:
    """One new token for each of the first n slots of the cache.

    positions [n] int64: where each new token stands; longest: one more than the largest of them.
    """

    def __init__(self, cache: KeyValueCache, positions: Tensor, longest: int) -> None:
        self._cache = cache
        self._positions = positions
        self._rows = torch.arange(len(positions), device=positions.device)
        self._longest = longest
        self._masks: dict[int | None, Tensor] = {}

    def attend(
        self,
        layer: int,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        scaling: float | None,
        window: int | None,
    ) -> Tensor:
        heads, sequences, width = queries.shape
        self._cache.write_tokens(
            layer, self._rows, self._positions, keys.transpose(0, 1), values.transpose(0, 1)
        )
        cached_keys, cached_values = self._cache.view(layer, sequences, self._longest)
        # The query heads that share a key head become that head's queries: no key is repeated.
        grouped = queries.transpose(0, 1).reshape(sequences, keys.shape[0], heads // keys.shape[0], width)
        out = scaled_dot_product_attention(
            grouped, cached_keys, cached_values, attn_mask=self._mask(window, queries.dtype), scale=scaling
        )
        return out.reshape(sequences, heads, values.shape[2])

    def _mask(self, window: int | None, dtype: torch.dtype) -> Tensor:
        """[n, 1, 1, longest]: 0 where a token may look, minus infinity elsewhere."""
        if window not in self._masks:
            column = torch.arange(self._longest, device=self._positions.device)
            hidden = column > self._positions[:, None]
            if window is not None:
                hidden |= column <= self._positions[:, None] - window
            mask = torch.zeros(hidden.shape, dtype=dtype, device=hidden.device).masked_fill_(
                hidden, -torch.inf
            )
            self._masks[window] = mask[:, None, None]
        return self._masks[window]


def _split(states: Tensor, run: PromptRun) -> Tensor:
    """[heads, tokens, width] -> [prompts, heads, length, width] of the run."""
    part = states[:, run.start : run.start + run.prompts * run.length]
    return part.view(part.shape[0], run.prompts, run.length, part.shape[2]).transpose(0, 1)


def _band(length: int, window: int, device: torch.device) -> Tensor:
    """[length, length] bool: row q may look at column k where q - window < k <= q."""
    position = torch.arange(length, device=device)
    return (position <= position[:, None]) & (position > position[:, None] - window)
