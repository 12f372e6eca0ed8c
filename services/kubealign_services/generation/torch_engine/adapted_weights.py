"""An adapter merged into a model's weights, anew for each version and always from the same base.

Only the matrices that are adapted are kept a second time, as they were: nothing drifts, however many versions
come.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers.pytorch_utils import Conv1D

from kubealign_services.adapters.low_rank import LowRank, by_layer


@dataclass(frozen=True)
class _Adapted:
    weight: Tensor
    base: Tensor
    transposed: bool


class AdaptedWeights:
    """The adapted layers of a model that otherwise holds its base."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        self._layers: dict[str, _Adapted] = {}

    def forget(self) -> None:
        """The model's weights are about to become another base."""
        self._layers.clear()

    @torch.no_grad()
    def take(self, tensors: Iterable[tuple[str, Tensor]], scale: float) -> None:
        """Replace the adapter by this one, in place. Raises ValueError for a layer that the model does not
        have, shapes that are not the layer's, or a layer of the adapter before that did not come; some
        may have been merged by then."""
        adapters = by_layer(tensors)
        missing = self._layers.keys() - adapters.keys()
        if missing:
            raise ValueError(f"adapter: {len(missing)} layers did not come: {', '.join(sorted(missing)[:4])}")
        for name, adapter in adapters.items():
            layer = self._layer(name, adapter)
            device = layer.base.device
            moved = LowRank(
                adapter.down.to(device),
                adapter.up.to(device),
                None if adapter.magnitude is None else adapter.magnitude.to(device),
            )
            layer.weight.copy_(moved.merged(layer.base, scale, layer.transposed))

    def _layer(self, name: str, adapter: LowRank) -> _Adapted:
        if name not in self._layers:
            self._layers[name] = self._find(name)
        layer = self._layers[name]
        outputs, inputs = layer.base.T.shape if layer.transposed else layer.base.shape
        rank = adapter.down.shape[0]
        wanted = [(rank, inputs), (outputs, rank), (outputs,)]
        parts = [adapter.down, adapter.up] + ([] if adapter.magnitude is None else [adapter.magnitude])
        for part, shape in zip(parts, wanted, strict=False):
            if part.shape != shape:
                raise ValueError(
                    f"adapter: a part of {name} has the shape {list(part.shape)}, "
                    f"the layer wants {list(shape)}"
                )
        return layer

    def _find(self, name: str) -> _Adapted:
        try:
            module = self._model.get_submodule(name)
        except AttributeError:
            module = None
        if not isinstance(module, torch.nn.Linear | Conv1D):
            raise ValueError(f"adapter: the model has no linear layer {name!r}")
        return _Adapted(module.weight, module.weight.detach().clone(), isinstance(module, Conv1D))
