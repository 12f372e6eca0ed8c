"""Low-rank adapters of stacked experts: W_e + scale * B_e A_e for each expert e, with matrices of its own.

The adapted weights of all experts are computed in each pass, as by peft's `target_parameters`; the frozen
ones stay as they are.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from kubealign.spec.sections.training import Lora
from kubealign_services.training.adapters.lora import LowRankAdapter
from kubealign_services.training.torch_backend.model.fsdp import full_tensor

#: Child of a module of experts that holds the adapters of its weights, by the weights' names.
_CHILD = "expert_adapters"
_INFIX = f".{_CHILD}."

_ADAPTED_CLASSES: dict[type[nn.Module], type[nn.Module]] = {}


class StackedLora(nn.Module):
    """Adapter of one stacked weight [experts, outputs, inputs].

    Attributes:
        lora_A: [experts, rank, inputs], uniform as a linear layer's first weights, as peft draws it.
        lora_B: [experts, outputs, rank], zeros at first.
        scale: alpha / rank.
    """

    def __init__(self, weight: Tensor, lora: Lora) -> None:
        super().__init__()
        experts, outputs, inputs = weight.shape
        bound = 1 / math.sqrt(inputs)
        self.lora_A = nn.Parameter(torch.empty(experts, lora.rank, inputs).uniform_(-bound, bound))
        self.lora_B = nn.Parameter(torch.zeros(experts, outputs, lora.rank))
        self.scale = lora.alpha / lora.rank
        self._disable_adapters = False

    def adapt(self, weight: Tensor) -> Tensor:
        """Return the adapted weight; the weight itself while the adapter is disabled."""
        if self._disable_adapters:
            return weight
        up, down = self.lora_B.to(weight.dtype), self.lora_A.to(weight.dtype)
        return torch.baddbmm(weight, up, down, alpha=self.scale)

    def gather(self) -> LowRankAdapter:
        """Return the full adapter. Collective when sharded."""
        return LowRankAdapter(full_tensor(self.lora_A.detach()), full_tensor(self.lora_B.detach()), None)


class _AdaptedExperts(nn.Module):
    """Mixin placed before a model's own class of stacked experts."""

    def forward(self, *arguments: Any, **named: Any) -> Tensor:
        adapters: dict[str, StackedLora] = dict(getattr(self, _CHILD).items())
        # An attribute of the instance is read in place of the parameter of its name.
        for name, adapter in adapters.items():
            self.__dict__[name] = adapter.adapt(self._parameters[name])  # type: ignore[arg-type]
        try:
            output: Tensor = super().forward(*arguments, **named)
        finally:
            for name in adapters:
                del self.__dict__[name]
        return output


def add_expert_adapters(model: nn.Module, weights: Sequence[str], lora: Lora) -> None:
    """Add adapters to the named stacked weights, in place. Draws from torch's generator."""
    for name in weights:
        owner, _, weight = name.rpartition(".")
        module = model.get_submodule(owner)
        if not hasattr(module, _CHILD):
            module.add_module(_CHILD, nn.ModuleDict())
            kind = type(module)
            if kind not in _ADAPTED_CLASSES:
                _ADAPTED_CLASSES[kind] = type(f"Adapted{kind.__name__}", (_AdaptedExperts, kind), {})
            module.__class__ = _ADAPTED_CLASSES[kind]
        getattr(module, _CHILD)[weight] = StackedLora(getattr(module, weight), lora)


def expert_adapters(model: nn.Module) -> Iterator[tuple[str, StackedLora]]:
    """Yield (name of the stacked weight, its adapter)."""
    for name, module in model.named_modules():
        if isinstance(module, StackedLora):
            yield name.replace(_INFIX, "."), module


def is_expert_adapter(name: str) -> bool:
    """Return True for the name of a parameter of an adapter of experts."""
    return _INFIX in name
