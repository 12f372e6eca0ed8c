"""Low-rank adapters on megatron-core's linear layers (Hu et al. 2021).

megatron-core fuses query, key and value, and gate and up: such a layer has an adapter for each of these, so
that outside they are the Hugging Face model's layers. An adapter is shared among tensor ranks as its layer
is: of a column-parallel one B's rows are, of a row-parallel one A's columns.

    adapted = lora_targets.adapted_layers(config, lora)                   # before `of_ranks`, for it
    add_adapters(trunk, conversion, lora, first_downs(...), tensor_group)  # once the weights are read
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from megatron.core.tensor_parallel import (
    copy_to_tensor_model_parallel_region,
    gather_from_sequence_parallel_region,
    reduce_from_tensor_model_parallel_region,
    reduce_scatter_to_sequence_parallel_region,
)
from torch import Tensor, nn
from torch.nn import functional

from kubealign.spec.training import Lora
from kubealign_services.training.megatron_backend.conversion import ADAPTER, Conversion
from kubealign_services.training.megatron_backend.table import Split


class LayerAdapter(nn.Module):
    """lora_A [rank, inputs of this rank], lora_B [outputs of this rank, rank], fp32."""

    def __init__(self, down: Tensor, outputs: int) -> None:
        super().__init__()
        self.lora_A = nn.Parameter(down)
        self.lora_B = nn.Parameter(torch.zeros(outputs, len(down), device=down.device))


class Adapters(nn.ModuleDict):
    """Of one of megatron-core's layers: a `LayerAdapter` for each of the layers it is fused of that has one.

    outputs: for each of the fused layers, in the order in which they stand in it, its name and this rank's
    outputs. groups: how often that order is repeated. is_row: whether tensor ranks share the inputs.
    """

    def __init__(
        self,
        layers: Mapping[str, LayerAdapter],
        outputs: Mapping[str, int],
        groups: int,
        is_row: bool,
        lora: Lora,
        group: dist.ProcessGroup,
        sequence_parallel: bool,
    ) -> None:
        super().__init__(layers)
        self.is_on = True
        self._outputs = outputs
        self._groups = groups
        self._is_row = is_row
        self._scale = lora.alpha / lora.rank
        self._dropout = lora.dropout
        self._group = group
        self._sequence_parallel = sequence_parallel
        for adapter in layers.values():
            whole = adapter.lora_B if is_row else adapter.lora_A
            # Each tensor rank saw some of the tokens: their gradients are summed.
            whole.sequence_parallel = sequence_parallel  # type: ignore[attr-defined]

    def forward(self, inputs: Tensor) -> Tensor:
        """inputs: the layer's, [t, 1, inputs] -> what is added to its output, in its dtype."""
        layers: dict[str, Any] = dict(self.items())
        down = torch.cat([layer.lora_A for layer in layers.values()]).to(inputs.dtype)
        dropped = functional.dropout(inputs, self._dropout, self.training)
        low = self._shared(functional.linear(dropped, down))
        lows = dict(zip(layers, low.chunk(len(layers), -1), strict=True))
        pieces = []
        for name, outputs in self._outputs.items():
            if name in layers:
                piece = functional.linear(lows[name], layers[name].lora_B.to(inputs.dtype))
            else:
                piece = low.new_zeros(*low.shape[:-1], outputs)
            pieces.append(piece.view(*piece.shape[:-1], self._groups, -1))
        return torch.cat(pieces, -1).flatten(-2) * self._scale

    def _shared(self, low: Tensor) -> Tensor:
        """[t, 1, ranks of all] between A and B, made whole over the tensor ranks."""
        if self._group.size() == 1:
            return low
        whole: Tensor
        if self._is_row and self._sequence_parallel:
            whole = reduce_scatter_to_sequence_parallel_region(low, group=self._group)
        elif self._is_row:
            whole = reduce_from_tensor_model_parallel_region(low, group=self._group)
        elif self._sequence_parallel:
            whole = gather_from_sequence_parallel_region(low, True, group=self._group)
        else:
            whole = copy_to_tensor_model_parallel_region(low, group=self._group)
        return whole


def add_adapters(
    trunk: nn.Module,
    conversion: Conversion,
    lora: Lora,
    downs: Mapping[str, Tensor],
    group: dist.ProcessGroup,
) -> None:
    """Adapt this rank's stage in place: its own weights are frozen, the adapters are trained (and a scalar
    head, which is not the trunk's). B is 0, so that nothing is computed differently yet.

    trunk: megatron-core's model, with its weights, on its device. conversion: of this rank, with its adapted
    layers. downs: every layer's whole A by its Hugging Face name. group: the tensor ranks. With dropout the
    random numbers of tensor ranks must be the same. A stage may have none of the layers.
    """
    for parameter in trunk.parameters():
        parameter.requires_grad_(False)
    modules = dict(trunk.named_modules())
    for name, stand in _adapted(conversion).items():
        layer: Any = modules[name]
        split = conversion.split(f"{name}.weight")
        device = layer.weight.device
        layers = {
            part: LayerAdapter(
                _own_part(downs, conversion, f"{name}{ADAPTER}{part}.lora_A").to(device),
                conversion.shapes[f"{name}{ADAPTER}{part}.lora_B"][0],
            )
            for part in stand
        }
        outputs: dict[str, int] = {}
        for part in conversion.parts(f"{name}.weight"):
            end = part.name.split(".")[-2]
            outputs[end] = outputs.get(end, 0) + part.size[0]
        groups = conversion.shape.groups // conversion.layout.tensor if split is Split.QKV else 1
        layer.adapters = Adapters(
            layers, outputs, groups, split is Split.ROW, lora, group, layer.config.sequence_parallel
        )
        layer.register_forward_hook(_add)


def _add(layer: Any, arguments: tuple[Any, ...], output: tuple[Tensor, Tensor | None]) -> Any:
    """After megatron-core's layer, which returns its output and a bias that is yet to be added."""
    if not layer.adapters.is_on:
        return output
    return output[0] + layer.adapters(arguments[0]), output[1]


def _adapted(conversion: Conversion) -> dict[str, list[str]]:
    """megatron-core's layer on this rank -> the fused layers that have an adapter."""
    found: dict[str, list[str]] = {}
    for name in conversion.shapes:
        layer, mark, rest = name.partition(ADAPTER)
        if mark and rest.endswith(".lora_A"):
            found.setdefault(layer, []).append(rest.removesuffix(".lora_A"))
    return found


def _own_part(downs: Mapping[str, Tensor], conversion: Conversion, name: str) -> Tensor:
    """This rank's columns of a layer's A."""
    (part,) = conversion.parts(name)
    whole = downs[part.name.removesuffix(".lora_A.weight")]
    return whole[:, part.start[1] : part.start[1] + part.size[1]].clone()


@contextmanager
def adapters_off(trunk: nn.Module) -> Iterator[None]:
    """Within the block the stage computes what it computed before it was adapted, bit for bit."""
    found = [module for module in trunk.modules() if isinstance(module, Adapters)]
    for adapters in found:
        adapters.is_on = False
    try:
        yield
    finally:
        for adapters in found:
            adapters.is_on = True
