"""Merges an adapter into a model's weights, anew for each version and always from the same base.

Only the adapted matrices are kept a second time, unmodified: nothing drifts, however many versions arrive.
The base's own memory is never written to: on a CPU it may be shared with other processes.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from transformers.pytorch_utils import Conv1D

from kubealign_services.training.adapters.lora import LowRankAdapter, group_by_layer, row_norms


@dataclass(frozen=True)
class _AdaptedLayer:
    weight: Tensor
    base: Tensor
    transposed: bool


class MergedAdapter:
    """The adapted layers of a model whose other layers hold the base weights."""

    def __init__(
        self, model: torch.nn.Module, norms: Callable[[str, Tensor], Tensor] = lambda layer, v: row_norms(v)
    ) -> None:
        """Create the merger without an adapter.

        Args:
            norms: Maps (layer, V [outputs, inputs]) to the norm of each output's inputs, for DoRA.
        """
        self._model = model
        self._norms = norms
        self._layers: dict[str, _AdaptedLayer] = {}

    def base_weights(self) -> Iterator[Tensor]:
        """Return the matrices that are kept a second time."""
        return (layer.base for layer in self._layers.values())

    def forget(self) -> None:
        """Drop the adapter: the model's weights are about to be replaced."""
        self._layers.clear()

    @torch.no_grad()
    def merge(self, tensors: Iterable[tuple[str, Tensor]], scale: float) -> None:
        """Replace the adapter in place.

        Raises ValueError for a layer that the model does not have, shapes that do not match the layer, or
        a missing layer of the earlier adapter; nothing has been merged then.
        """
        for name, adapter in self.validate(tensors).items():
            layer = self._layers[name]
            device = layer.base.device
            moved = LowRankAdapter(
                adapter.down.to(device),
                adapter.up.to(device),
                None if adapter.magnitude is None else adapter.magnitude.to(device),
            )
            merged = moved.merge_into(layer.base, scale, layer.transposed, partial(self._norms, name))
            if layer.weight.data_ptr() == layer.base.data_ptr():
                layer.weight.data = torch.empty_like(layer.base)
            layer.weight.copy_(merged)

    def validate(self, tensors: Iterable[tuple[str, Tensor]]) -> dict[str, LowRankAdapter]:
        """Validate an adapter and return it by layer. Raises the errors of `merge`; merges nothing."""
        adapters = group_by_layer(tensors)
        missing = self._layers.keys() - adapters.keys()
        if missing:
            raise ValueError(f"adapter: {len(missing)} layers did not come: {', '.join(sorted(missing)[:4])}")
        for name, adapter in adapters.items():
            self._check(name, adapter)
        return adapters

    def _check(self, name: str, adapter: LowRankAdapter) -> None:
        if name not in self._layers:
            self._layers[name] = self._find_layer(name)
        layer = self._layers[name]
        *experts, outputs, inputs = layer.base.T.shape if layer.transposed else layer.base.shape
        rank = adapter.down.shape[-2]
        expected_shapes = [(*experts, rank, inputs), (*experts, outputs, rank), (outputs,)]
        parts = [adapter.down, adapter.up] + ([] if adapter.magnitude is None else [adapter.magnitude])
        for part, shape in zip(parts, expected_shapes, strict=False):
            if part.shape != shape:
                raise ValueError(
                    f"adapter: a part of {name} has the shape {list(part.shape)}, "
                    f"the layer needs {list(shape)}"
                )

    def _find_layer(self, name: str) -> _AdaptedLayer:
        try:
            module = self._model.get_submodule(name)
        except AttributeError:
            module = None
        weight = module.weight if isinstance(module, torch.nn.Linear | Conv1D) else self._find_experts(name)
        if weight is None:
            raise ValueError(f"adapter: the model has no linear layer {name!r}")
        # An accelerator's weight keeps its memory: recorded CUDA graphs contain its address.
        base = weight.data if weight.device.type == "cpu" else weight.detach().clone()
        return _AdaptedLayer(weight, base, isinstance(module, Conv1D))

    def _find_experts(self, name: str) -> Tensor | None:
        """Return the stacked weight of experts, [experts, outputs, inputs], of this name."""
        weight = dict(self._model.named_parameters()).get(name)
        return weight if weight is not None and weight.dim() == 3 else None
