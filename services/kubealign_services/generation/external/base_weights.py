"""Base weights for external engines that accept whole tensors only: adapters are merged here, always into the
same base.
"""

from collections.abc import Iterable, Iterator

from torch import Tensor

from kubealign_services.training.adapters.lora import group_by_layer

_WEIGHT_SUFFIX = ".weight"


class BaseWeights:
    """Copies of a base model's matrices in CPU memory, for jobs that train an adapter."""

    def __init__(self) -> None:
        self._weights: dict[str, Tensor] = {}
        self._adapted_layers: set[str] = set()

    def __bool__(self) -> bool:
        return bool(self._weights)

    def record(self, tensors: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        """Yield the same tensors and copy each matrix on the way, replacing an earlier base."""
        self._weights.clear()
        self._adapted_layers.clear()
        for name, tensor in tensors:
            if tensor.dim() == 2 and name.endswith(_WEIGHT_SUFFIX):
                self._weights[name] = tensor.detach().to("cpu", copy=True)
            yield name, tensor

    def merge(self, tensors: Iterable[tuple[str, Tensor]], scale: float) -> dict[str, Tensor]:
        """Return the adapted matrices, merged, in the base's precision.

        Raises ValueError for a layer that the base does not have, for shapes that do not match, or for a
        missing layer of the earlier adapter.
        """
        adapters = group_by_layer(tensors)
        missing = self._adapted_layers - adapters.keys()
        if missing:
            raise ValueError(f"adapter: {len(missing)} layers did not come: {', '.join(sorted(missing)[:4])}")
        merged_weights = {}
        for layer, adapter in adapters.items():
            base = self._weights.get(layer + _WEIGHT_SUFFIX)
            if base is None:
                raise ValueError(f"adapter: the model has no linear layer {layer!r}")
            outputs, inputs = base.shape
            if adapter.down.shape[1] != inputs or adapter.up.shape != (outputs, adapter.down.shape[0]):
                raise ValueError(
                    f"adapter: the parts of {layer} have the shapes {list(adapter.down.shape)} and "
                    f"{list(adapter.up.shape)}, the layer {list(base.shape)}"
                )
            merged_weights[layer + _WEIGHT_SUFFIX] = adapter.merge_into(base, scale, transposed=False).to(
                base.dtype
            )
        self._adapted_layers |= adapters.keys()
        return merged_weights
