"""Sequences that inform the advantages of the others and are not learned: marked by the column companion."""

import torch
from torch import Tensor

from kubealign_services.batch.packed import Batch

#: uint8 [S]: not 0 for a companion. A batch without the column has none.
COMPANION = "companion"


def is_learned(batch: Batch) -> Tensor:
    """bool [S]: which sequences are no companions."""
    marked = batch.sequence_columns.get(COMPANION)
    return torch.ones(len(batch), dtype=torch.bool) if marked is None else marked == 0


def learned(batch: Batch) -> Batch:
    """The sequences that are no companions; the batch itself where all are."""
    chosen = is_learned(batch)
    return batch if bool(chosen.all()) else batch.select(chosen.nonzero().flatten().tolist())


def without_companions(batch: Batch) -> Batch:
    """As `learned`, without the column."""
    chosen = learned(batch)
    chosen.sequence_columns.pop(COMPANION, None)
    return chosen
