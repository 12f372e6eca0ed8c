"""The mean over the entries that count, and no others."""

from torch import Tensor


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean of values where mask is non-zero; 0 where nothing counts. Scalar, in the dtype of values."""
    chosen = values[mask.bool()]
    return chosen.sum() / max(len(chosen), 1)
