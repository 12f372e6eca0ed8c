"""Low-rank adapters on megatron-core's linear layers (Hu et al. 2021).

megatron-core fuses query, key and value, and gate and up: such a layer has an adapter for each of its parts,
which correspond to the Hugging Face model's layers. An adapter is divided among tensor ranks as its layer is:
B's rows of a column-parallel layer, A's columns of a row-parallel one.

    adapted = lora_layers.adapted_layers(config, lora)                    # input of `build_conversions`
    add_adapters(trunk, conversion, lora, init_lora_a(...), tensor_group)  # once the weights are loaded
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
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

from kubealign.spec.sections.training import Lora
from kubealign_services.training.megatron_backend.weights.conversion import ADAPTER_MARK, WeightConversion
from kubealign_services.training.megatron_backend.weights.weight_mapping import TensorSplit


class LayerAdapter(nn.Module):
    """Adapter parameters in fp32: lora_A [rank, inputs of this rank], lora_B [outputs of this rank, rank]."""

    def __init__(self, down: Tensor, outputs: int) -> None:
        super().__init__()
        self.lora_A = nn.Parameter(down)
        self.lora_B = nn.Parameter(torch.zeros(outputs, len(down), device=down.device))


@dataclass(frozen=True)
class FusedLayout:
    """Layout of a fused layer on this rank.

    Args:
        outputs: For each fused part, in order, its name and this rank's outputs.
        groups: Number of repetitions of that order.
        is_row: True when tensor ranks divide the inputs.
    """

    outputs: Mapping[str, int]
    groups: int
    is_row: bool


class FusedLayerAdapters(nn.ModuleDict):
    """Adapters of one fused layer of megatron-core: a `LayerAdapter` for each adapted part."""

    def __init__(
        self,
        layers: Mapping[str, LayerAdapter],
        layout: FusedLayout,
        lora: Lora,
        group: dist.ProcessGroup,
        sequence_parallel: bool,
    ) -> None:
        """Combine the adapters of the tensor ranks `group`."""
        super().__init__(layers)
        self.is_enabled = True
        self._layout = layout
        self._scale = lora.alpha / lora.rank
        self._dropout = lora.dropout
        self._group = group
        self._sequence_parallel = sequence_parallel
        for adapter in layers.values():
            replicated = adapter.lora_B if layout.is_row else adapter.lora_A
            # Each tensor rank sees some of the tokens: their gradients are summed.
            replicated.sequence_parallel = sequence_parallel  # type: ignore[attr-defined]

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the addend to the layer's output, in its dtype.

        Args:
            inputs: The layer's inputs, [t, 1, inputs].
        """
        layers: dict[str, Any] = dict(self.items())
        down = torch.cat([layer.lora_A for layer in layers.values()]).to(inputs.dtype)
        dropped = functional.dropout(inputs, self._dropout, self.training)
        low = self._reduce_low_rank(functional.linear(dropped, down))
        lows = dict(zip(layers, low.chunk(len(layers), -1), strict=True))
        pieces = []
        for name, outputs in self._layout.outputs.items():
            if name in layers:
                piece = functional.linear(lows[name], layers[name].lora_B.to(inputs.dtype))
            else:
                piece = low.new_zeros(*low.shape[:-1], outputs)
            pieces.append(piece.view(*piece.shape[:-1], self._layout.groups, -1))
        return torch.cat(pieces, -1).flatten(-2) * self._scale

    def _reduce_low_rank(self, low: Tensor) -> Tensor:
        """Reduce or gather the low-rank activations [t, 1, ranks of all adapters] between A and B over the
        tensor ranks.
        """
        if self._group.size() == 1:
            return low
        reduced: Tensor
        if self._layout.is_row and self._sequence_parallel:
            reduced = reduce_scatter_to_sequence_parallel_region(low, group=self._group)
        elif self._layout.is_row:
            reduced = reduce_from_tensor_model_parallel_region(low, group=self._group)
        elif self._sequence_parallel:
            reduced = gather_from_sequence_parallel_region(low, True, group=self._group)
        else:
            reduced = copy_to_tensor_model_parallel_region(low, group=self._group)
        return reduced


def add_adapters(
    trunk: nn.Module,
    conversion: WeightConversion,
    lora: Lora,
    lora_a: Mapping[str, Tensor],
    group: dist.ProcessGroup,
) -> None:
    """Add adapters to this rank's stage in place: its own weights are frozen, the adapters (and a score head,
    which is not part of the trunk) are trained.

    B is 0, so that the outputs do not change yet. With dropout, the RNG states of tensor ranks must be the
    same. A stage may have none of the layers.

    Args:
        trunk: megatron-core's model with its weights, on its device.
        conversion: Conversion of this rank, with its adapted layers.
        lora_a: Full A of every layer by its Hugging Face name.
        group: The tensor ranks.
    """
    for parameter in trunk.parameters():
        parameter.requires_grad_(False)
    modules = dict(trunk.named_modules())
    for name, adapted_parts in _adapted_by_layer(conversion).items():
        layer: Any = modules[name]
        split = conversion.split_of(f"{name}.weight")
        device = layer.weight.device
        layers = {
            part: LayerAdapter(
                _local_lora_a(lora_a, conversion, f"{name}{ADAPTER_MARK}{part}.lora_A").to(device),
                conversion.shapes[f"{name}{ADAPTER_MARK}{part}.lora_B"][0],
            )
            for part in adapted_parts
        }
        outputs: dict[str, int] = {}
        for part in conversion.slices_of(f"{name}.weight"):
            leaf = part.name.split(".")[-2]
            outputs[leaf] = outputs.get(leaf, 0) + part.size[0]
        groups = conversion.shape.kv_heads // conversion.layout.tensor if split is TensorSplit.QKV else 1
        layout = FusedLayout(outputs, groups, is_row=split is TensorSplit.ROW)
        layer.adapters = FusedLayerAdapters(layers, layout, lora, group, layer.config.sequence_parallel)
        layer.register_forward_hook(_add_adapter_output)


def _add_adapter_output(layer: Any, arguments: tuple[Any, ...], output: tuple[Tensor, Tensor | None]) -> Any:
    """Add the adapters' output in a forward hook of megatron-core's layer, which returns its output and a
    bias to be added later.
    """
    if not layer.adapters.is_enabled:
        return output
    return output[0] + layer.adapters(arguments[0]), output[1]


def _adapted_by_layer(conversion: WeightConversion) -> dict[str, list[str]]:
    """Map each layer of megatron-core on this rank to its fused parts that have an adapter."""
    by_layer: dict[str, list[str]] = {}
    for name in conversion.shapes:
        layer, separator, rest = name.partition(ADAPTER_MARK)
        if separator and rest.endswith(".lora_A"):
            by_layer.setdefault(layer, []).append(rest.removesuffix(".lora_A"))
    return by_layer


def _local_lora_a(lora_a: Mapping[str, Tensor], conversion: WeightConversion, name: str) -> Tensor:
    """Return this rank's columns of a layer's A."""
    (part,) = conversion.slices_of(name)
    full = lora_a[part.name.removesuffix(".lora_A.weight")]
    return full[:, part.start[1] : part.start[1] + part.size[1]].clone()


@contextmanager
def adapters_disabled(trunk: nn.Module) -> Iterator[None]:
    """Disable the adapters within the block: the stage computes, bit for bit, what it computed without
    them.
    """
    adapter_modules = [module for module in trunk.modules() if isinstance(module, FusedLayerAdapters)]
    for adapters in adapter_modules:
        adapters.is_enabled = False
    try:
        yield
    finally:
        for adapters in adapter_modules:
            adapters.is_enabled = True
