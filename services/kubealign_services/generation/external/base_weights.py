"""Base weights for external engines that accept whole tensors only: adapters are merged here, always into the
same base.
"""

from collections.abc import Iterable, Iterator

from torch import Tensor

from kubealign_services.generation.external.adapter_check import LayerShape, check_adapter
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

        Raises the errors of `check_adapter`.
        """
        adapters = group_by_layer(tensors)
        check_adapter(adapters, self._shapes(), self._adapted_layers)
        merged_weights = {}
        for layer, adapter in adapters.items():
            base = self._weights[layer + _WEIGHT_SUFFIX]
            merged = adapter.merge_into(base, scale, transposed=False)
            merged_weights[layer + _WEIGHT_SUFFIX] = merged.to(base.dtype)
        self._adapted_layers |= adapters.keys()
        return merged_weights

    def _shapes(self) -> dict[str, LayerShape]:
        shapes = {}
        for name, weight in self._weights.items():
            outputs, inputs = weight.shape
            shapes[name.removesuffix(_WEIGHT_SUFFIX)] = (outputs, inputs)
        return shapes
