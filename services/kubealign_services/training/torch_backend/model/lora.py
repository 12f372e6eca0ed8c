"""Low-rank adapters in a model, by peft: injected, disabled, gathered.

peft is imported on demand: a job without adapters does not pay for the import.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import xxhash
from torch import Tensor, nn

from kubealign.spec.sections.training import Lora
from kubealign_services.training.adapters.lora import LowRankAdapter
from kubealign_services.training.adapters.targets import (
    is_linear,
    select_expert_weights,
    select_target_layers,
)
from kubealign_services.training.contract import Head
from kubealign_services.training.torch_backend.model.expert_lora import (
    StackedLora,
    add_expert_adapters,
    expert_adapters,
    is_expert_adapter,
)
from kubealign_services.training.torch_backend.model.fsdp import full_tensor
from kubealign_services.training.torch_backend.model.packed_model import PackedModel

#: peft's name of the only adapter, and its infix between a layer's name and the base parameters' names.
_ADAPTER = "default"
_BASE = ".base_layer."
_PARTS = (".lora_A.", ".lora_B.", ".lora_magnitude_vector.")


def add_adapters(model: PackedModel, lora: Lora, seed: int) -> None:
    """Add adapters to the backbone in place.

    The backbone's own weights are frozen; the adapter and the score head are trained, in fp32. B is zero, so
    that the outputs do not change yet; A is drawn from (seed, head). The model is on the CPU and not sharded.
    Raises ValueError for targets that the model does not have.
    """
    from peft import LoraConfig, inject_adapter_in_model

    names = select_target_layers(model.backbone, lora.targets)
    stacked = select_expert_weights(model.backbone, lora.targets)
    modules = dict(model.backbone.named_modules())
    config = LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=names,
        use_dora=lora.dora,
        fan_in_fan_out=all(not isinstance(modules[name], nn.Linear) for name in names),
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(adapter_seed(seed, model.head))
        if names:
            inject_adapter_in_model(config, model.backbone, _ADAPTER)
        else:
            model.backbone.requires_grad_(False)
        add_expert_adapters(model.backbone, stacked, lora)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
    model.eval()


def adapter_seed(seed: int, head: Head) -> int:
    """Return the seed for the initial A of a model with this head."""
    return xxhash.xxh3_64_intdigest(f"lora:{seed}:{head}".encode()) >> 1


def adapted_layers(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield (name in the plain model, peft's layer) of each adapted layer, and (name of the weight,
    StackedLora) of stacked experts; nothing without an adapter.
    """
    for name, module in model.named_modules():
        if isinstance(module, StackedLora):
            continue
        if hasattr(module, "lora_A") and is_linear(module.get_base_layer()):
            yield name, module
    yield from expert_adapters(model)


def gather_low_rank(layer: Any) -> LowRankAdapter:
    """Return the layer's full adapter. Collective when sharded."""
    if isinstance(layer, StackedLora):
        return layer.gather()
    magnitude = layer.lora_magnitude_vector
    return LowRankAdapter(
        down=full_tensor(layer.lora_A[_ADAPTER].weight.detach()),
        up=full_tensor(layer.lora_B[_ADAPTER].weight.detach()),
        magnitude=full_tensor(magnitude[_ADAPTER].weight.detach()) if _ADAPTER in magnitude else None,
    )


def adapter_scale(layer: Any) -> float:
    """Return alpha / rank."""
    return layer.scale if isinstance(layer, StackedLora) else float(layer.scaling[_ADAPTER])


def is_transposed(layer: Any) -> bool:
    """Return True when the layer stores its weight as [inputs, outputs]."""
    return not isinstance(layer, StackedLora) and not isinstance(layer.get_base_layer(), nn.Linear)


def base_name(name: str) -> str | None:
    """Return a parameter's name in the model without an adapter; None for the adapter's own parameters."""
    is_adapter = is_expert_adapter(name) or any(part in name for part in _PARTS)
    return None if is_adapter else name.replace(_BASE, ".")


def gather_merged_weight(name: str, weight: Tensor, layers: dict[str, Any]) -> Tensor:
    """Return the full weight of a base parameter, merged with the adapter of its layer if it has one.

    Collective when sharded.

    Args:
        layers: Adapted layers by the names of `adapted_layers`.
    """
    layer = layers.get(name.removesuffix(_BASE + "weight"))
    if layer is None:
        return full_tensor(weight.detach())
    return gather_low_rank(layer).merge_into(
        full_tensor(weight.detach()), adapter_scale(layer), is_transposed(layer)
    )


def stream_adapter(model: PackedModel, dtype: torch.dtype, rank: int) -> Iterator[tuple[str, Tensor]]:
    """Yield (name as in `adapters.lora`, CPU tensor of dtype) of each part; collective.

    On ranks other than 0 the tensors are empty.
    """
    for name, layer in adapted_layers(model.backbone):
        for part, tensor in gather_low_rank(layer).named_tensors(name):
            yield part, tensor.to("cpu", dtype) if rank == 0 else torch.empty(0, dtype=dtype)


@contextmanager
def adapters_disabled(model: PackedModel) -> Iterator[None]:
    """Disable the adapters within the block: the model computes, bit for bit, what it computed without them.

    Not by peft's `enable_adapters`, which also toggles requires_grad: a sharded model keeps the flags of its
    first forward pass.
    """
    layers = [layer for _, layer in adapted_layers(model)]
    for layer in layers:
        layer._disable_adapters = True
    try:
        yield
    finally:
        for layer in layers:
            layer._disable_adapters = False
