"""Taking new weights into a model, by the names of its Hugging Face checkpoint."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor


class CheckpointWeights:
    """A model's weights by checkpoint name; tied ones are one weight that goes by any of its names."""

    def __init__(self, model: torch.nn.Module, put: Callable[[str, Tensor], object] | None = None) -> None:
        """put: given each weight that fits; None: it is copied into the model."""
        self._put = put or self._copy
        self._weights: dict[str, Tensor] = {}
        self._first_name: dict[int, str] = {}
        for name, weight in model.state_dict(keep_vars=True).items():
            self._weights[name] = weight
            self._first_name.setdefault(id(weight), name)

    @torch.no_grad()
    def take(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        """Copy (or put) every weight in place, floating-point ones converted to the model's own precision.
        Raises ValueError for a name that the model does not have, another shape, numbers of another kind, a
        weight that comes twice or not at all; some may have been copied by then."""
        missing = dict.fromkeys(self._first_name.values())
        for name, tensor in tensors:
            weight = self._weights.get(name)
            if weight is None:
                raise ValueError(
                    f"weights: the model has no {name!r}; it has {self._some(list(self._weights))}"
                )
            if tensor.shape != weight.shape:
                raise ValueError(
                    f"weights: {name!r} has the shape {list(tensor.shape)}, the model's {list(weight.shape)}"
                )
            if tensor.dtype != weight.dtype and not (
                tensor.is_floating_point() and weight.is_floating_point()
            ):
                raise ValueError(f"weights: {name!r} holds {tensor.dtype}, the model's {weight.dtype}")
            first = self._first_name[id(weight)]
            if first not in missing:
                raise ValueError(
                    f"weights: {name!r} came twice" + (f", before as {first!r}" if first != name else "")
                )
            del missing[first]
            self._put(name, tensor)
        if missing:
            raise ValueError(
                f"weights: {len(missing)} of {len(self._first_name)} did not come: "
                f"{self._some(list(missing))}"
            )

    def _copy(self, name: str, tensor: Tensor) -> None:
        self._weights[name].copy_(tensor)

    @staticmethod
    def _some(names: list[str]) -> str:
        return ", ".join(repr(name) for name in names[:4]) + (
            f" and {len(names) - 4} more" if len(names) > 4 else ""
        )
