"""Shares of a mean: what each entry is multiplied with, so that a plain sum over any split is the mean over
the whole.

Shares are float64: a share of a large minibatch is small, and is cast to the loss's dtype only when it is
used."""

import torch
from torch import Tensor

from kubealign_services.batch.packed import Batch


def token_mean_shares(mask: Tensor) -> Tensor:
    """float64 [T]: 1 / (number of entries where mask is non-zero) there, 0 elsewhere; all 0 where nothing
    counts."""
    chosen = mask.bool().double()
    return chosen / chosen.sum().clamp(min=1)


def sequence_shares(batch: Batch) -> Tensor:
    """float64 [S]: 1 / S each."""
    return torch.full((len(batch),), 1 / max(len(batch), 1), dtype=torch.float64)
