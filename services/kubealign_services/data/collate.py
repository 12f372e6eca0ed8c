"""Collation of prepared rows to a packed batch. Sequences are concatenated without padding."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from kubealign_services.batch.packed import Batch, pack
from kubealign_services.data.prepared import PreparedRow


def collate(rows: Sequence[PreparedRow], names: Sequence[str], kind: str) -> Batch:
    """Build a batch of S sequences, each a prompt with a response, and T tokens.

    Token column loss_mask: uint8 [T], 1 on the response's tokens, end-of-sequence included; in a
    conversation, on the tokens of the imitated turns. Sample ids are the names.
    preferences: chosen and rejected are adjacent, as NAME/chosen and NAME/rejected; where the rows are
    rated, the sequence column rating, float32 [S]. ratings: the sequence column ratings, float32 [S, N],
    NaN for an unknown one; where steps are labelled instead, the token column step_labels, float32 [T], the
    label at the last token of each step, NaN at other tokens and for an unknown one.
    unpaired: the sequence column label, uint8 [S].

    Args:
        names: One for each row.

    Raises ValueError for rows without a response.
    """
    sequences: list[tuple[str, list[int], list[int]]] = []
    mask: list[int] = []
    for row, name in zip(rows, names, strict=True):
        for sequence_name, tokens in _responses(row, name, kind):
            sequences.append((sequence_name, row.prompt_tokens, tokens))
            mask += [0] * len(row.prompt_tokens) + (row.response_mask or [1] * len(tokens))
    batch = pack([prompt + response for _, prompt, response in sequences], [name for name, _, _ in sequences])
    batch.token_columns["loss_mask"] = torch.tensor(mask, dtype=torch.uint8)
    if kind == "ratings" and all(row.step_labels is not None for row in rows):
        batch.token_columns["step_labels"] = _step_label_column(rows, batch)
    else:
        batch.sequence_columns |= _annotation_columns(rows, kind)
    return batch


def _step_label_column(rows: Sequence[PreparedRow], batch: Batch) -> Tensor:
    """Return the labels of steps at their tokens, float32 [T]; NaN elsewhere."""
    column = torch.full((len(batch.tokens),), math.nan, dtype=torch.float32)
    for row, start in zip(rows, batch.cu_seqlens.tolist(), strict=False):
        first = start + len(row.prompt_tokens)
        for token, label in zip(row.step_tokens or (), row.step_labels or (), strict=True):
            # A token that ends two steps has the label of the later one, unless that is unknown.
            if label is not None:
                column[first + token] = label
    return column


def _responses(row: PreparedRow, name: str, kind: str) -> list[tuple[str, list[int]]]:
    if kind != "preferences":
        return [(name, _response(row.response_tokens, name, kind))]
    return [
        (f"{name}/chosen", _response(row.chosen_tokens, name, kind)),
        (f"{name}/rejected", _response(row.rejected_tokens, name, kind)),
    ]


def _annotation_columns(rows: Sequence[PreparedRow], kind: str) -> dict[str, Tensor]:
    """Return the sequence columns of ratings or labels."""
    if kind == "ratings":
        rows_of_ratings = [
            [math.nan if rating is None else rating for rating in row.ratings or ()] for row in rows
        ]
        return {"ratings": torch.tensor(rows_of_ratings, dtype=torch.float32)}
    if kind == "unpaired":
        return {"label": torch.tensor([row.label for row in rows], dtype=torch.uint8)}
    rated = [side for row in rows for side in (row.chosen_rating, row.rejected_rating)]
    if kind == "preferences" and all(side is not None for side in rated):
        return {"rating": torch.tensor(rated, dtype=torch.float32)}
    return {}


def _response(tokens: list[int] | None, name: str, kind: str) -> list[int]:
    if tokens is None:
        raise ValueError(f"row {name} has no response to learn from: it is not one of {kind}")
    return tokens
