"""Prepared rows to a packed batch. Sequences lie one after another: there is no padding, so no side to
pad on."""

from collections.abc import Sequence

import torch

from kubealign_services.batch.packed import Batch, pack
from kubealign_services.data.prepared import PreparedRow


def collate(rows: Sequence[PreparedRow], names: Sequence[str], kind: str) -> Batch:
    """A batch of S sequences, each a prompt with a response, and T tokens. names: one for each row.

    Token column loss_mask: uint8 [T], 1 on the response's tokens, the end-of-sequence included.
    demonstrations: sample ids are the names. preferences: chosen and rejected lie side by side, as
    NAME/chosen and NAME/rejected. ratings: the sequence column rating, float32 [S]. Raises ValueError for
    rows that lack a response.
    """
    sequences: list[tuple[str, list[int], list[int]]] = []
    for row, name in zip(rows, names, strict=True):
        if kind == "preferences":
            sequences.append((f"{name}/chosen", row.prompt_tokens, _response(row.chosen_tokens, name, kind)))
            sequences.append(
                (f"{name}/rejected", row.prompt_tokens, _response(row.rejected_tokens, name, kind))
            )
        else:
            sequences.append((name, row.prompt_tokens, _response(row.response_tokens, name, kind)))
    batch = pack([prompt + response for _, prompt, response in sequences], [name for name, _, _ in sequences])
    mask = [bit for _, prompt, response in sequences for bit in [0] * len(prompt) + [1] * len(response)]
    batch.token_columns["loss_mask"] = torch.tensor(mask, dtype=torch.uint8)
    if kind == "ratings":
        ratings = [row.rating for row in rows]
        batch.sequence_columns["rating"] = torch.tensor(ratings, dtype=torch.float32)
    return batch


def _response(tokens: list[int] | None, name: str, kind: str) -> list[int]:
    if tokens is None:
        raise ValueError(f"row {name} has no response to learn from: it is not one of {kind}")
    return tokens
