"""Layers that a LoRA specification targets in a model of megatron-core, by their Hugging Face names, and the
adapters' initial weights. Both match the torch backend: the same layers, the same A from the same seed.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from kubealign.spec.sections.training import Lora
from kubealign_services.training.adapters.targets import select_target_layers
from kubealign_services.training.contract import Head
from kubealign_services.training.megatron_backend.weights.conversion import AdaptedLayers
from kubealign_services.training.torch_backend.model.lora import adapter_seed

#: Layer of a Qwen2 mixture that megatron-core computes within the shared expert, not as a separate layer.
_SHARED_EXPERT_GATE = ".shared_expert_gate"


def adapted_layers(config: Any, lora: Lora) -> AdaptedLayers:
    """Select the layers to adapt. A kind of layer excludes the gate of a shared expert.

    Raises ValueError for DoRA, for stacked experts, for that gate by name, and what `select_target_layers`
    raises.

    Args:
        config: The Hugging Face model's config.
    """
    if lora.dora:
        raise ValueError(
            "trainer.lora.dora: true; the Megatron backend does not support DoRA: set false, or use the "
            "torch backend"
        )
    if lora.targets.has_experts:
        raise ValueError(
            f"trainer.lora.targets.{lora.targets.member}: the Megatron backend adapts no stacked experts: "
            "leave them out, or use the torch backend"
        )
    names = select_target_layers(_meta_model(config), lora.targets)
    gates = [name for name in names if name.endswith(_SHARED_EXPERT_GATE)]
    if gates and lora.targets.names is not None:
        raise ValueError(
            f"trainer.lora.targets.names: {gates[0]} cannot be adapted by the Megatron backend; leave it out"
        )
    return AdaptedLayers(lora.rank, frozenset(names) - frozenset(gates))


def init_lora_a(config: Any, lora: Lora, seed: int, head: Head, dtype: torch.dtype) -> dict[str, Tensor]:
    """Return the initial A, fp32 [rank, inputs], by a layer's Hugging Face name, as peft draws it over a
    model of dtype: from U(-1/sqrt(inputs), 1/sqrt(inputs)). B is 0.
    """
    skeleton = _meta_model(config)
    modules = dict(skeleton.named_modules())
    downs = {}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(adapter_seed(seed, head))
        for name in select_target_layers(skeleton, lora.targets):
            layer: Any = modules[name]
            down = nn.Linear(layer.in_features, lora.rank, bias=False)
            # peft also draws B before setting it to 0, and A a second time.
            nn.Linear(lora.rank, layer.out_features, bias=False)
            nn.init.kaiming_uniform_(down.weight, a=math.sqrt(5))
            downs[name] = down.weight.detach().to(dtype).float()
    return downs


def _meta_model(config: Any) -> PreTrainedModel:
    """Return the model on the meta device, without memory for its weights."""
    auto: Any = AutoModelForCausalLM
    with torch.device("meta"):
        skeleton: PreTrainedModel = auto.from_config(config)
    return skeleton
