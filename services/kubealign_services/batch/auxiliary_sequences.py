"""Auxiliary sequences, such as baselines: they inform the advantages of other sequences and are not trained
on. The column `companion` marks them.
"""

import torch
from torch import Tensor

from kubealign_services.batch.packed import Batch

#: Column uint8 [S]: nonzero for an auxiliary sequence. A batch without the column has no auxiliary sequences.
IS_BASELINE = "companion"


def trainable_mask(batch: Batch) -> Tensor:
    """Return bool [S]: True for sequences that are trained on."""
    flags = batch.sequence_columns.get(IS_BASELINE)
    return torch.ones(len(batch), dtype=torch.bool) if flags is None else flags == 0


def trainable(batch: Batch) -> Batch:
    """Return the sequences that are trained on; the batch itself when all sequences are."""
    mask = trainable_mask(batch)
    return batch if bool(mask.all()) else batch.select(mask.nonzero().flatten().tolist())


def drop_auxiliary(batch: Batch) -> Batch:
    """Return the sequences that are trained on, without the column `companion`."""
    result = trainable(batch)
    result.sequence_columns.pop(IS_BASELINE, None)
    return result
