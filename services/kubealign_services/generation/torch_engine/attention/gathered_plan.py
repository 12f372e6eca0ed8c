"""Attention over pages by gathering them: for every model, dtype and device, in torch's own operations."""

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from kubealign_services.generation.torch_engine.kv_cache.paged_kv_cache import PagedKVCache
from kubealign_services.generation.torch_engine.ragged_batch import PAGE_TOKENS, RaggedBatch
from kubealign_services.training.softcapped_attention import softcapped_attention

# Sequences are gathered together while the shortest has at least this share of the longest's tokens, or all
# are short: more groups mean more operations, fewer groups more padding.
MIN_CONTEXT_SHARE = 0.75
SHORT_CONTEXT = 64
# Without cuDNN, which compiles anew for each new shape: nearly every pass has one.
_GPU_BACKENDS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


@dataclass(frozen=True)
class _Block:
    """Sequences with the same number of new tokens.

    tokens: their indices among the T tokens of the pass, int64 [sequences * length]. slots: cache slots
    that they read, int64 [sequences, seen]; None: only the new tokens, which are all tokens. mask
    [sequences, 1, length, seen]: added to the scores; None: each token sees those before it.
    """

    length: int
    tokens: Tensor
    slots: Tensor | None
    mask: Tensor | None


class GatheredPlan:
    """An EngineAttentionPlan for a RaggedBatch."""

    def __init__(
        self, batch: RaggedBatch, cache: PagedKVCache, dtype: torch.dtype, device: torch.device
    ) -> None:
        """Prepare the slots of a batch.

        Args:
            dtype: Dtype of the queries.
        """
        self._cache = cache
        self._slots = torch.from_numpy(slot_mapping(batch)).to(device)
        self._rows = GatheredRows(batch, np.arange(len(batch.lengths)), dtype, device)

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
        cached_keys, cached_values = self._cache.layer(layer)
        cached_keys.flatten(0, 1)[self._slots] = keys.transpose(0, 1)
        cached_values.flatten(0, 1)[self._slots] = values.transpose(0, 1)
        out = values.new_empty(queries.shape[1], queries.shape[0], values.shape[2])
        with sdpa_kernel(_GPU_BACKENDS) if queries.is_cuda else nullcontext():
            self._rows.attend(
                (cached_keys, cached_values), queries, keys, values, scaling, window, softcap, out
            )
        return out


class GatheredRows:
    """Attention for some sequences of a batch, after all new keys and values have been written."""

    def __init__(
        self, batch: RaggedBatch, rows: NDArray[np.int64], dtype: torch.dtype, device: torch.device
    ) -> None:
        """Select the sequences.

        Args:
            rows: Indices of the sequences in the batch, ascending.
            dtype: Dtype of the queries.
        """
        self._batch, self._rows = batch, rows
        self._dtype, self._device = dtype, device
        self._blocks: dict[int | None, list[_Block]] = {}

    def attend(
        self,
        cached: tuple[Tensor, Tensor],
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        scaling: float | None,
        window: int | None,
        softcap: float | None,
        out: Tensor,
    ) -> None:
        """Compute attention into out [T, heads, value width] at the tokens of the selected sequences.

        Args:
            cached: Keys and values of the layer, [pages, PAGE_TOKENS, heads, width].
        """
        if window not in self._blocks:
            self._blocks[window] = list(_blocks(self._batch, self._rows, window, self._dtype, self._device))
        flat = [block.flatten(0, 1) for block in cached]
        for block in self._blocks[window]:
            q = _split_sequences(queries[:, block.tokens], block.length)
            if block.slots is None:
                k = _split_sequences(keys[:, block.tokens], block.length)
                v = _split_sequences(values[:, block.tokens], block.length)
            else:
                k, v = (all_tokens[block.slots].transpose(1, 2) for all_tokens in flat)
            out[block.tokens] = _attend(q, k, v, block.mask, scaling, softcap).transpose(1, 2).flatten(0, 1)


def slot_mapping(batch: RaggedBatch) -> NDArray[np.int64]:
    """Return the slot of each new token, page * PAGE_TOKENS + offset: int64 [T]."""
    rows = np.repeat(np.arange(len(batch.lengths)), batch.lengths)
    pages = batch.page_tables[rows, batch.positions // PAGE_TOKENS].astype(np.int64)
    return pages * PAGE_TOKENS + batch.positions % PAGE_TOKENS


def _attend(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scaling: float | None, softcap: float | None
) -> Tensor:
    """Compute attention over [sequences, heads, length, width]; the result has the queries' heads and the
    values' width.
    """
    sequences, heads, length, width = q.shape
    if softcap is not None:
        return softcapped_attention(q, k, v, mask, scaling, softcap)
    if length > 1:
        return scaled_dot_product_attention(
            q, k, v, mask, is_causal=mask is None, scale=scaling, enable_gqa=heads != k.shape[1]
        )
    # The query heads that share a key head become that head's queries: no key is repeated.
    grouped = q.reshape(sequences, k.shape[1], heads // k.shape[1], width)
    out = scaled_dot_product_attention(grouped, k, v, mask, scale=scaling)
    return out.reshape(sequences, heads, 1, v.shape[3])


def _split_sequences(states: Tensor, length: int) -> Tensor:
    """Reshape [heads, sequences * length, width] to [sequences, heads, length, width]."""
    return states.view(states.shape[0], -1, length, states.shape[2]).transpose(0, 1)


def _blocks(
    batch: RaggedBatch,
    sequences: NDArray[np.int64],
    window: int | None,
    dtype: torch.dtype,
    device: torch.device,
) -> Iterator[_Block]:
    starts = np.cumsum(batch.lengths) - batch.lengths
    for similar in _group_similar(batch.lengths[sequences], batch.context_lengths[sequences]):
        rows = sequences[similar]
        length = int(batch.lengths[rows[0]])
        tokens = (starts[rows, None] + np.arange(length)).ravel()
        contexts = batch.context_lengths[rows]
        windowed = window is not None and window < contexts.max()
        if contexts.max() == length and not windowed:
            yield _Block(length, torch.from_numpy(tokens).to(device), None, None)
            continue
        places, mask = _visible_slots(batch.page_tables[rows], contexts, length, window if windowed else None)
        added = torch.zeros(mask.shape, dtype=dtype).masked_fill_(torch.from_numpy(mask), -torch.inf)
        yield _Block(
            length,
            torch.from_numpy(tokens).to(device),
            torch.from_numpy(places).to(device),
            added[:, None].to(device),
        )


def _group_similar(lengths: NDArray[np.int64], contexts: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """Yield groups of rows with the same length and similar context lengths."""
    order = np.lexsort((-contexts, lengths))
    first = 0
    for index in range(1, len(order) + 1):
        if index < len(order):
            longest, row = order[first], order[index]
            near = (
                contexts[row] >= MIN_CONTEXT_SHARE * contexts[longest] or contexts[longest] <= SHORT_CONTEXT
            )
            # The first chunk of a prompt reads nothing from the cache, later chunks do.
            same_kind = (contexts[row] == lengths[row]) == (contexts[longest] == lengths[longest])
            if lengths[row] == lengths[longest] and near and (same_kind or lengths[row] == 1):
                continue
        yield order[first:index]
        first = index


def _visible_slots(
    tables: NDArray[np.int32], contexts: NDArray[np.int64], length: int, window: int | None
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the slots int64 [rows, seen] that the new tokens read, and a mask of hidden ones: [rows, length,
    seen].

    The last slots of a shorter row repeat its last token, so that no other slot is ever read.
    """
    lowest = np.zeros_like(contexts) if window is None else np.maximum(0, contexts - length - window + 1)
    columns = lowest[:, None] + np.arange(int((contexts - lowest).max()))
    positions = np.minimum(columns, contexts[:, None] - 1)
    pages = np.take_along_axis(tables, positions // PAGE_TOKENS, axis=1).astype(np.int64)
    looking = contexts[:, None] - length + np.arange(length)
    hidden = columns[:, None, :] > looking[:, :, None]
    if window is not None:
        hidden |= columns[:, None, :] <= looking[:, :, None] - window
    return pages * PAGE_TOKENS + positions % PAGE_TOKENS, hidden
