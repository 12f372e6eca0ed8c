"""Attention kernel for a GPU: new tokens of several sequences over their pages of keys and values.

Written in the Triton language (Tillet et al. 2019), whose compiler comes with torch; it has nothing to do
with NVIDIA's Triton Inference Server. One program computes a block of queries of one sequence for one key
head and all query heads that share it, by the online softmax of FlashAttention (Dao et al. 2022).
"""

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray
from torch import Tensor

# Rows of a block: query tokens times the query heads of a key head. `tl.dot` needs at least 16; prompts
# read their keys fewer times in larger blocks.
DECODE_ROWS, PREFILL_ROWS = 16, 64
# Keys of an iteration: at most this number, and at most this number of bytes, which must fit in the shared
# memory of a multiprocessor several times.
_MAX_TILE_KEYS, _TILE_BYTES = 64, 16384
_LOG2_E = 1.4426950408889634
_NO_WINDOW = 1 << 30


@triton.jit  # type: ignore[untyped-decorator]
def _attend_block(  # type: ignore[no-untyped-def]
    queries,
    keys,
    values,
    out,
    block_sequences,
    block_starts,
    starts,
    page_tables,
    context_lengths,
    query_token_stride,
    query_head_stride,
    key_slot_stride,
    value_slot_stride,
    page_table_stride,
    scaling,
    window,
    softcap,
    WIDTH: tl.constexpr,
    VALUE_WIDTH: tl.constexpr,
    PADDED_WIDTH: tl.constexpr,
    PADDED_VALUE_WIDTH: tl.constexpr,
    SHARING: tl.constexpr,
    PAGE: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
    PRECISION: tl.constexpr,
    CAPPED: tl.constexpr,
):
    """Compute a block of queries [ROWS], row r for query token r // SHARING and query head r % SHARING."""
    sequence = tl.load(block_sequences + tl.program_id(0))
    first_token = tl.load(block_starts + tl.program_id(0))
    key_head = tl.program_id(1)
    end_token = tl.load(starts + sequence + 1)
    context = tl.load(context_lengths + sequence)

    row = tl.arange(0, ROWS)
    token = first_token + row // SHARING
    head = key_head * SHARING + row % SHARING
    # Rows beyond the last whole group of heads, and beyond the sequence's last token, compute nothing.
    is_row = (row < (ROWS // SHARING) * SHARING) & (token < end_token)
    position = context - end_token + token
    column = tl.arange(0, PADDED_WIDTH)
    value_column = tl.arange(0, PADDED_VALUE_WIDTH)
    query = tl.load(
        queries + token[:, None] * query_token_stride + head[:, None] * query_head_stride + column[None, :],
        mask=is_row[:, None] & (column < WIDTH)[None, :],
        other=0.0,
    )

    largest = tl.full([ROWS], -float("inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    weighted = tl.zeros([ROWS, PADDED_VALUE_WIDTH], tl.float32)
    last_position = tl.max(tl.where(is_row, position, -1))
    first_position = context - end_token + first_token
    begin = tl.maximum(first_position - window + 1, 0) // TILE * TILE
    for tile in range(begin, last_position + 1, TILE):
        key_position = tile + tl.arange(0, TILE)
        # Slots beyond the context are never read: they may be uninitialised, and 0 times NaN is NaN.
        is_key = key_position <= last_position
        page_entry = page_tables + sequence * page_table_stride + key_position // PAGE
        page = tl.load(page_entry, mask=is_key, other=0)
        slot = page.to(tl.int64) * PAGE + key_position % PAGE
        key = tl.load(
            keys + slot[None, :] * key_slot_stride + key_head * WIDTH + column[:, None],
            mask=is_key[None, :] & (column < WIDTH)[:, None],
            other=0.0,
        )
        score = tl.dot(query, key, input_precision=PRECISION) * scaling
        if CAPPED:
            # tanh(x) = 2 sigmoid(2 x) - 1; the language has no tanh for all devices.
            score = softcap * (2.0 * tl.sigmoid(2.0 * score / softcap) - 1.0)
        is_visible = (key_position[None, :] <= position[:, None]) & is_key[None, :]
        is_visible &= key_position[None, :] > position[:, None] - window
        score = tl.where(is_visible, score, -float("inf"))
        larger = tl.maximum(largest, tl.max(score, 1))
        # A row that has seen no key yet subtracts 0 instead of minus infinity.
        shift = tl.where(larger == -float("inf"), 0.0, larger)
        weight = tl.exp2(score - shift[:, None])
        correction = tl.exp2(largest - shift)
        total = total * correction + tl.sum(weight, 1)
        value = tl.load(
            values + slot[:, None] * value_slot_stride + key_head * VALUE_WIDTH + value_column[None, :],
            mask=is_key[:, None] & (value_column < VALUE_WIDTH)[None, :],
            other=0.0,
        )
        weighted = weighted * correction[:, None]
        weighted += tl.dot(weight.to(value.dtype), value, input_precision=PRECISION)
        largest = larger
    # Rows that compute nothing have a total of 0.
    result = weighted / tl.where(total == 0.0, 1.0, total)[:, None]
    # out is contiguous: [tokens, heads, value width].
    heads = tl.num_programs(1) * SHARING
    tl.store(
        out + (token[:, None] * heads + head[:, None]) * VALUE_WIDTH + value_column[None, :],
        result.to(out.dtype.element_ty),
        mask=is_row[:, None] & (value_column < VALUE_WIDTH)[None, :],
    )


def query_blocks(
    lengths: NDArray[np.int64], sharing: int, rows: int
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Split the new tokens of sequences into the kernel's blocks.

    Returns the sequence of each block, and the index of its first token among all T: int32 [blocks].

    Args:
        lengths: int64 [n], the new tokens of each sequence.
        sharing: Query heads that share a key head.
        rows: Rows of a block, DECODE_ROWS or PREFILL_ROWS.
    """
    tokens = max(1, rows // sharing)
    counts = -(-lengths // tokens)
    sequences = np.repeat(np.arange(len(lengths)), counts)
    starts = np.cumsum(lengths) - lengths
    number = np.arange(len(sequences)) - np.repeat(np.cumsum(counts) - counts, counts)
    return sequences.astype(np.int32), (starts[sequences] + number * tokens).astype(np.int32)


def paged_attention(
    queries: Tensor,
    cached: tuple[Tensor, Tensor],
    blocks: tuple[Tensor, Tensor],
    rows: int,
    starts: Tensor,
    page_tables: Tensor,
    context_lengths: Tensor,
    scaling: float | None,
    window: int | None,
    softcap: float | None = None,
) -> Tensor:
    """Return the attention of each new token over its sequence's pages: [T, heads, value width].

    The new tokens' own keys and values are in the pages already. Scores and sums are float32; products of
    float32 inputs are not rounded to TF32.

    Args:
        queries: [heads, T, width].
        cached: Keys and values [pages, page tokens, key heads, width], contiguous.
        blocks: int32 [blocks] twice, from `query_blocks` with the same `rows`.
        rows: Rows of a block.
        starts: int32 [n + 1], the start of each sequence's new tokens, and the end.
        page_tables: int32 [n, most], contiguous rows.
        context_lengths: int32 [n], tokens of each sequence, the new ones included.
        scaling: Factor of the scores; None: width ** -0.5.
        window: A token sees itself and the window - 1 tokens before it; None: all tokens before it.
        softcap: Scores s become softcap * tanh(s / softcap); None: they stay as they are.
    """
    keys, values = cached
    heads, tokens, width = queries.shape
    _, page, key_heads, value_width = values.shape
    sharing = heads // key_heads
    padded_width, padded_value_width = (max(16, triton.next_power_of_2(w)) for w in (width, value_width))
    row_bytes = max(padded_width, padded_value_width) * keys.element_size()
    queries = queries.transpose(0, 1)
    if queries.stride(2) != 1:
        queries = queries.contiguous()
    out = torch.empty(tokens, heads, value_width, dtype=queries.dtype, device=queries.device)
    _attend_block[(len(blocks[0]), key_heads)](
        queries,
        keys,
        values,
        out,
        *blocks,
        starts,
        page_tables,
        context_lengths,
        queries.stride(0),
        queries.stride(1),
        keys.stride(1),
        values.stride(1),
        page_tables.stride(0),
        (width**-0.5 if scaling is None else scaling) * _LOG2_E,
        _NO_WINDOW if window is None else window,
        # In the unit of the scores, whose exponentials are powers of 2.
        1.0 if softcap is None else softcap * _LOG2_E,
        WIDTH=width,
        VALUE_WIDTH=value_width,
        PADDED_WIDTH=padded_width,
        PADDED_VALUE_WIDTH=padded_value_width,
        SHARING=sharing,
        PAGE=page,
        ROWS=triton.next_power_of_2(max(rows, sharing)),
        TILE=max(16, min(_MAX_TILE_KEYS, _TILE_BYTES // row_bytes)),
        PRECISION="ieee",
        CAPPED=softcap is not None,
    )
    return out
