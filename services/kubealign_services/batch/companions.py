"""Auxiliary sequences, such as baselines: they inform the advantages of other sequences and are not trained
on. The
column `companion` marks them.
"""

import torch
from torch import Tensor

from kubealign_services.batch.packed import Batch

#: Column uint8 [S]: nonzero for an auxiliary sequence. A batch without the column has no auxiliary sequences.
COMPANION = "companion"


def is_learned(batch: Batch) -> Tensor:
    """Return bool [S]: True for sequences that are trained on."""
    flags = batch.sequence_columns.get(COMPANION)
    return torch.ones(len(batch), dtype=torch.bool) if flags is None else flags == 0


def learned(batch: Batch) -> Batch:
    """Return the sequences that are trained on; the batch itself when all sequences are."""
    mask = is_learned(batch)
    return batch if bool(mask.all()) else batch.select(mask.nonzero().flatten().tolist())


def without_companions(batch: Batch) -> Batch:
    """Return the sequences that are trained on, without the column `companion`."""
    result = learned(batch)
    result.sequence_columns.pop(COMPANION, None)
    return result
