"""Loads new weights into a model, by the names of its Hugging Face checkpoint."""

from collections.abc import Iterable
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from kubealign_services.generation.expected_weights import ExpectedWeights


@runtime_checkable
class PersistentTensors(Protocol):
    """Named tensors with the flag `lasts`: their memory keeps its contents for as long as a view of it
    exists.
    """

    lasts: bool


class WeightLoader:
    """Loads a model's weights by checkpoint name; tied weights are one weight that accepts any of its names.

    Where a tensor is persistent and usable by the model as it is, on a CPU, the weight becomes a view of
    it: nothing is copied, and the model keeps the tensor's memory until the next `load`. That memory may
    be shared with other processes, so a weight must get memory of its own before it is written to.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        """Raises ValueError for a model that `ExpectedWeights` refuses."""
        self._model = model
        self._expected = ExpectedWeights(model)
        # Canonical names of the weights that are views of memory that the model does not own.
        self._adopted: set[str] = set()

    @torch.no_grad()
    def load(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        """Adopt or copy every weight; floating-point weights are converted to the model's own precision.

        Raises ValueError for weights that do not fit (see `ExpectedWeights.check`); some may have been
        loaded by then.
        """
        lasts = isinstance(tensors, PersistentTensors) and tensors.lasts
        if self._expected.views:
            # An offloaded parameter has other memory than before, and with it its views.
            self._expected = ExpectedWeights(self._model)
        expected = self._expected
        for name, tensor in expected.check(tensors):
            weight = expected.weights[name]
            first = expected.canonical_names[id(weight)]
            if lasts and name not in expected.views and _can_adopt(tensor, weight):
                weight.data = tensor
                self._adopted.add(first)
            else:
                self._copy(first, weight, tensor)

    def _copy(self, first: str, weight: Tensor, tensor: Tensor) -> None:
        if first in self._adopted:
            weight.data = torch.empty_like(weight)
            self._adopted.remove(first)
        weight.copy_(tensor)


def _can_adopt(tensor: Tensor, weight: Tensor) -> bool:
    """Return True where the model can compute with the tensor itself."""
    return (
        weight.device.type == tensor.device.type == "cpu"
        and tensor.dtype == weight.dtype
        and tensor.is_contiguous()
    )
