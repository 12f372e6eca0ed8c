"""Mismatched pairs for KTO's KL estimate: a row's prompt with another row's response.

The other row is the same in every epoch and after every restart, so that scores of a frozen model for the
pair can be cached: half of the rows further on, or the next one after it with another prompt.
"""

from collections.abc import Sequence

import torch

from kubealign_services.batch.auxiliary_sequences import IS_BASELINE
from kubealign_services.batch.packed import Batch, concatenate, pack
from kubealign_services.data.prepared import PreparedRow

_MAX_ATTEMPTS = 64


def add_mismatched_pairs(batch: Batch, indices: Sequence[int], rows: Sequence[PreparedRow]) -> Batch:
    """Append as many auxiliary sequences to the batch: the same rows with other rows' responses, named
    NAME/mismatched.

    Columns other than loss_mask and companion are 0 for auxiliary sequences.

    Args:
        indices: Index in `rows` of each sequence of the batch.
    """
    pairs = [(rows[index].prompt_tokens, _response(rows[mismatched_row(index, rows)])) for index in indices]
    auxiliary = pack(
        [prompt + response for prompt, response in pairs], [f"{name}/mismatched" for name in batch.sample_ids]
    )
    mask = [bit for prompt, response in pairs for bit in [0] * len(prompt) + [1] * len(response)]
    auxiliary.token_columns = {
        name: column.new_zeros((len(auxiliary.tokens), *column.shape[1:]))
        for name, column in batch.token_columns.items()
    }
    auxiliary.token_columns["loss_mask"] = torch.tensor(mask, dtype=torch.uint8)
    auxiliary.sequence_columns = {name: torch.zeros_like(c) for name, c in batch.sequence_columns.items()}
    batch.sequence_columns[IS_BASELINE] = torch.zeros(len(batch), dtype=torch.uint8)
    auxiliary.sequence_columns[IS_BASELINE] = torch.ones(len(batch), dtype=torch.uint8)
    return concatenate([batch, auxiliary])


def mismatched_row(index: int, rows: Sequence[PreparedRow]) -> int:
    """Return the row, of two or more, whose response is paired with the prompt of row `index`.

    Among many consecutive rows with the same prompt it may have that prompt too, but is never the row
    itself.
    """
    count = len(rows)
    first = (index + count // 2) % count
    prompt = rows[index].prompt_tokens
    for offset in range(min(count, _MAX_ATTEMPTS)):
        candidate = (first + offset) % count
        if rows[candidate].prompt_tokens != prompt:
            return candidate
    return first


def _response(row: PreparedRow) -> list[int]:
    assert row.response_tokens is not None
    return row.response_tokens
