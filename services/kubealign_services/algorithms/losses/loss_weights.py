"""Shares of a mean: factors with which a plain sum over any split is the mean over the whole.

Shares are float64: a share of a large minibatch is small, and is cast to the loss's dtype only when it is
used.
"""

import torch
from torch import Tensor

from kubealign_services.batch.packed import Batch


def token_mean_shares(mask: Tensor) -> Tensor:
    """Return 1 / (number of non-zero mask entries) at these entries and 0 elsewhere, float64 [T]; all 0 for
    an empty mask.
    """
    weights = mask.bool().double()
    return weights / weights.sum().clamp(min=1)


def sequence_shares(batch: Batch) -> Tensor:
    """Return 1 / S for each sequence, float64 [S]."""
    return torch.full((len(batch),), 1 / max(len(batch), 1), dtype=torch.float64)
