"""Pieces of weights: what one rank has of a checkpoint's tensor, whatever its backend's layout is."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class WeightSlice:
    """A rectangular piece of one tensor.

    name: the Hugging Face checkpoint's. shape: the whole tensor's. start: where the piece begins in each
    dimension; all 0 and tensor.shape == shape for a whole one. tensor: the piece, on whatever device; it may
    share the model's memory and then holds until the next update. dtype: the precision that it is meant in;
    None: the tensor's own.
    """

    name: str
    shape: tuple[int, ...]
    start: tuple[int, ...]
    tensor: Tensor
    dtype: torch.dtype | None = None

    @classmethod
    def whole(cls, name: str, tensor: Tensor) -> "WeightSlice":
        return cls(name, tuple(tensor.shape), (0,) * tensor.dim(), tensor)
