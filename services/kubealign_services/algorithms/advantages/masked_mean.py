"""Masked mean."""

from torch import Tensor


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Return the mean of values where mask is non-zero; 0 where the mask is empty. Scalar, in the dtype of
    values.
    """
    selected = values[mask.bool()]
    return selected.sum() / max(len(selected), 1)
