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


def sequence_shares(batch: Batch, mask: Tensor | None = None) -> Tensor:
    """Return 1 / S for each sequence, float64 [S].

    Args:
        mask: [S]; S then counts the sequences with a non-zero entry, and all others get 0. None: all count.
    """
    return token_mean_shares(torch.ones(len(batch)) if mask is None else mask)
