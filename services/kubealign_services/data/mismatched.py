"""A row's prompt with another row's response: what a method compares responses with that fit nothing.

The other row is the same in every epoch and at every restart, so what a frozen model says of the pair can be
kept: half of the rows further on, or the next after it with another prompt.
"""

from collections.abc import Sequence

import torch

from kubealign_services.batch.companions import COMPANION
from kubealign_services.batch.packed import Batch, concatenate, pack
from kubealign_services.data.prepared import PreparedRow

_TRIES = 64


def with_mismatched(batch: Batch, indices: Sequence[int], rows: Sequence[PreparedRow]) -> Batch:
    """The batch's sequences, then as many companions: those of the same rows with other rows' responses,
    named NAME/mismatched.

    indices: the batch's rows, one for each sequence, as places among `rows`. Columns other than loss_mask and
    companion are 0 for companions."""
    pairs = [(rows[index].prompt_tokens, _response(rows[partner(index, rows)])) for index in indices]
    others = pack(
        [prompt + response for prompt, response in pairs], [f"{name}/mismatched" for name in batch.sample_ids]
    )
    mask = [bit for prompt, response in pairs for bit in [0] * len(prompt) + [1] * len(response)]
    others.token_columns = {
        name: column.new_zeros((len(others.tokens), *column.shape[1:]))
        for name, column in batch.token_columns.items()
    }
    others.token_columns["loss_mask"] = torch.tensor(mask, dtype=torch.uint8)
    others.sequence_columns = {name: torch.zeros_like(c) for name, c in batch.sequence_columns.items()}
    batch.sequence_columns[COMPANION] = torch.zeros(len(batch), dtype=torch.uint8)
    others.sequence_columns[COMPANION] = torch.ones(len(batch), dtype=torch.uint8)
    return concatenate([batch, others])


def partner(index: int, rows: Sequence[PreparedRow]) -> int:
    """The row, of two or more, whose response goes with the prompt of this one. Where many in a row have
    the same prompt it may be one of them, but never itself."""
    count = len(rows)
    first = (index + count // 2) % count
    prompt = rows[index].prompt_tokens
    for away in range(min(count, _TRIES)):
        other = (first + away) % count
        if rows[other].prompt_tokens != prompt:
            return other
    return first


def _response(row: PreparedRow) -> list[int]:
    assert row.response_tokens is not None
    return row.response_tokens
