"""The weights that a model expects, by the names of its Hugging Face checkpoint."""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel

from kubealign_services.data.models.checkpoint_layout import to_checkpoint_layout


class ExpectedWeights:
    """Names, shapes and kinds of number of a model's weights.

    Tied weights are one weight that accepts any of its names; so is a parameter that the checkpoint names
    otherwise. A parameter that a checkpoint stores in several tensors, such as the stacked matrices of
    experts, is several weights, each a view of its part.

    weights: by name, those of the model. canonical_names: by the id of a weight, its first name. views: names
    of the weights that are parts of a parameter.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        """Index the model's weights, which may be on the meta device. The views are valid until a parameter
        gets other memory.

        Raises ValueError for a model whose checkpoint stores a parameter in a form that is no view of it.
        """
        own = model.state_dict(keep_vars=True)
        self.weights: dict[str, Tensor] = {}
        self.canonical_names: dict[int, str] = {}
        for name, weight in _checkpoint_weights(model, own).items():
            self.weights[name] = weight
            self.canonical_names.setdefault(id(weight), name)
        ids = {id(weight) for weight in own.values()}
        self.views = frozenset(name for name, weight in self.weights.items() if id(weight) not in ids)
        for name, weight in own.items():
            if id(weight) in self.canonical_names:
                self.weights.setdefault(name, weight)
        _check_views(own, self.weights)

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


class _NoContiguousCopies(TorchFunctionMode):
    """Keeps the parts of a tensor as views of it, where transformers would copy them for a file."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is Tensor.contiguous:
            return args[0]
        return func(*args, **(kwargs or {}))


@torch.no_grad()
def _checkpoint_weights(model: torch.nn.Module, own: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights by the names of the checkpoint that transformers would write."""
    if not isinstance(model, PreTrainedModel):
        return own
    with _NoContiguousCopies():
        return to_checkpoint_layout(model, own)


def _check_views(own: dict[str, Tensor], weights: dict[str, Tensor]) -> None:
    """Raise ValueError for a weight in memory of its own: what is written to it would not reach the model."""
    storages = {weight.untyped_storage().data_ptr() for weight in own.values() if not weight.is_meta}
    for name, weight in weights.items():
        if not weight.is_meta and weight.untyped_storage().data_ptr() not in storages:
            raise ValueError(f"weights: the model stores {name!r} in another form than its checkpoint")
