"""The weights that a model expects, by the names of its Hugging Face checkpoint."""

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor


class ExpectedWeights:
    """Names, shapes and kinds of number of a model's weights.

    Tied weights are one weight that accepts any of its names. weights: by name, those of the model.
    canonical_names: by the id of a weight, its first name.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        """Index the model's weights, which may be on the meta device."""
        self.weights: dict[str, Tensor] = {}
        self.canonical_names: dict[int, str] = {}
        for name, weight in model.state_dict(keep_vars=True).items():
            self.weights[name] = weight
            self.canonical_names.setdefault(id(weight), name)

    def check(self, tensors: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        """Yield each tensor under its own name once it has been checked.

        Raises ValueError, before the tensor is yielded, for a name that the model does not have, another
        shape, another kind of number and a weight that comes twice; at the end for weights that did not come.
        """
        missing = dict.fromkeys(self.canonical_names.values())
        for name, tensor in tensors:
            weight = self.weights.get(name)
            if weight is None:
                raise ValueError(
                    f"weights: the model has no {name!r}; it has {_format_names(list(self.weights))}"
                )
            if tensor.shape != weight.shape:
                raise ValueError(
                    f"weights: {name!r} has the shape {list(tensor.shape)}, the model's {list(weight.shape)}"
                )
            if tensor.dtype != weight.dtype and not (
                tensor.is_floating_point() and weight.is_floating_point()
            ):
                raise ValueError(f"weights: {name!r} holds {tensor.dtype}, the model's {weight.dtype}")
            first = self.canonical_names[id(weight)]
            if first not in missing:
                raise ValueError(
                    f"weights: {name!r} came twice" + (f", before as {first!r}" if first != name else "")
                )
            del missing[first]
            yield name, tensor
        if missing:
            raise ValueError(
                f"weights: {len(missing)} of {len(self.canonical_names)} did not come: "
                f"{_format_names(list(missing))}"
            )


def _format_names(names: list[str]) -> str:
    return ", ".join(repr(name) for name in names[:4]) + (
        f" and {len(names) - 4} more" if len(names) > 4 else ""
    )
