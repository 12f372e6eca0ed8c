"""Slices of weights: one rank's part of a checkpoint tensor, independent of the backend's layout."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class WeightSlice:
    """A rectangular slice of one tensor.

    Attributes:
        name: Name in the Hugging Face checkpoint.
        shape: Shape of the full tensor.
        start: Offset of the slice in each dimension; all 0 with tensor.shape == shape for a full tensor.
        tensor: The slice, on any device; it may share the model's memory and is then valid until the next
            update.
        dtype: Precision to convert the slice to; None for the tensor's own.
    """

    name: str
    shape: tuple[int, ...]
    start: tuple[int, ...]
    tensor: Tensor
    dtype: torch.dtype | None = None

    @classmethod
    def from_full_tensor(cls, name: str, tensor: Tensor) -> "WeightSlice":
        return cls(name, tuple(tensor.shape), (0,) * tensor.dim(), tensor)
