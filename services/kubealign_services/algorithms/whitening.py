"""Mean and spread over the entries that count, and no others."""

import torch
from torch import Tensor


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean of values where mask is non-zero; 0 where nothing counts. Scalar, in the dtype of values."""
    chosen = values[mask.bool()]
    return chosen.sum() / max(len(chosen), 1)


def masked_std(values: Tensor, mask: Tensor) -> Tensor:
    """Standard deviation (n - 1 in the denominator) where mask is non-zero; 0 for fewer than two entries.
    Scalar."""
    chosen = values[mask.bool()]
    return chosen.std() if len(chosen) > 1 else torch.zeros_like(chosen.sum())


def whiten(values: Tensor, mask: Tensor, epsilon: float = 1e-8) -> Tensor:
    """(value - mean) / (std + epsilon) where mask is non-zero, 0 elsewhere; the moments are of those
    entries alone."""
    scaled = (values - masked_mean(values, mask)) / (masked_std(values, mask) + epsilon)
    return torch.where(mask.bool(), scaled, torch.zeros_like(scaled))
