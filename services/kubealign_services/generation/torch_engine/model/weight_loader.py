"""Loads new weights into a model, by the names of its Hugging Face checkpoint."""

from collections.abc import Callable, Iterable
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor


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

    def __init__(self, model: torch.nn.Module, put: Callable[[str, Tensor], object] | None = None) -> None:
        """Index the model's weights.

        Args:
            put: Receives each valid weight; None: it is loaded into the model.
        """
        self._put = put
        self._weights: dict[str, Tensor] = {}
        self._canonical_names: dict[int, str] = {}
        # Canonical names of the weights that are views of memory that the model does not own.
        self._adopted: set[str] = set()
        for name, weight in model.state_dict(keep_vars=True).items():
            self._weights[name] = weight
            self._canonical_names.setdefault(id(weight), name)

    @torch.no_grad()
    def load(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        """Adopt, copy or put every weight; floating-point weights are converted to the model's own precision.

        Raises ValueError for a name that the model does not have, another shape, another kind of number, a
        weight that comes twice or not at all; some weights may have been loaded by then.
        """
        lasts = isinstance(tensors, PersistentTensors) and tensors.lasts
        missing = dict.fromkeys(self._canonical_names.values())
        for name, tensor in tensors:
            weight = self._weights.get(name)
            if weight is None:
                raise ValueError(
                    f"weights: the model has no {name!r}; it has {self._format_names(list(self._weights))}"
                )
            if tensor.shape != weight.shape:
                raise ValueError(
                    f"weights: {name!r} has the shape {list(tensor.shape)}, the model's {list(weight.shape)}"
                )
            if tensor.dtype != weight.dtype and not (
                tensor.is_floating_point() and weight.is_floating_point()
            ):
                raise ValueError(f"weights: {name!r} holds {tensor.dtype}, the model's {weight.dtype}")
            first = self._canonical_names[id(weight)]
            if first not in missing:
                raise ValueError(
                    f"weights: {name!r} came twice" + (f", before as {first!r}" if first != name else "")
                )
            del missing[first]
            if self._put is not None:
                self._put(name, tensor)
            elif lasts and _can_adopt(tensor, weight):
                weight.data = tensor
                self._adopted.add(first)
            else:
                self._copy(first, tensor)
        if missing:
            raise ValueError(
                f"weights: {len(missing)} of {len(self._canonical_names)} did not come: "
                f"{self._format_names(list(missing))}"
            )

    def _copy(self, first: str, tensor: Tensor) -> None:
        weight = self._weights[first]
        if first in self._adopted:
            weight.data = torch.empty_like(weight)
            self._adopted.remove(first)
        weight.copy_(tensor)

    @staticmethod
    def _format_names(names: list[str]) -> str:
        return ", ".join(repr(name) for name in names[:4]) + (
            f" and {len(names) - 4} more" if len(names) > 4 else ""
        )


def _can_adopt(tensor: Tensor, weight: Tensor) -> bool:
    """Return True where the model can compute with the tensor itself."""
    return (
        weight.device.type == tensor.device.type == "cpu"
        and tensor.dtype == weight.dtype
        and tensor.is_contiguous()
    )
