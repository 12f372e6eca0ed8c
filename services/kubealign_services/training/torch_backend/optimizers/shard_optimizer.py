"""Optimizer of a model of which this rank holds shards, composed of update rules for plain tensors.

Each trained weight has a stepped tensor: this rank's shard, in the same memory, or with the optimiser on
the host a copy of it. An optimiser step on the host copies the gradients there, updates the copies and copies
them back. The weights on the device stay in fp32 in any precision of the computation: they are FSDP2's
shards, and their dtype is that of the gradient, which is summed over the microbatches.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from kubealign_services.training.torch_backend.model.fsdp import local_shard
from kubealign_services.training.torch_backend.optimizers.update_rules import DecayGroup, UpdateRule

#: Weights with the tensors that are stepped in their stead.
SteppedTensors = Mapping[nn.Parameter, Tensor]


@dataclass(frozen=True)
class RuleParameters:
    """Weights that one rule updates.

    Attributes:
        groups: Weights with the same weight decay, and that decay.
        create: Creates the rule over the tensors that are stepped in their stead.
        peak_rate: Peak learning rate where it is not that of AdamW.
    """

    groups: Sequence[tuple[Sequence[nn.Parameter], float]]
    create: Callable[[Sequence[DecayGroup], SteppedTensors], UpdateRule]
    peak_rate: float | None = None


class ShardOptimizer(torch.optim.Optimizer):
    """Steps this rank's shards.

    `param_groups` holds the model's parameters, and `state` the rules' states by the model's parameters.
    Every method is called on all ranks alike.
    """

    def __init__(self, parts: Sequence[RuleParameters], *, on_host: bool) -> None:
        """Create the rules.

        Args:
            parts: Disjoint sets of parameters, at least one of which is not empty.
            on_host: Keep copies of the weights, their gradients and the state in host memory, and step there.
        """
        groups: list[dict[str, Any]] = [
            {"params": list(parameters), "weight_decay": decay, "peak_rate": part.peak_rate}
            for part in parts
            for parameters, decay in part.groups
        ]
        super().__init__(groups, {"lr": 0.0})
        self._on_host = on_host
        self._on_cuda = any(each.is_cuda for group in groups for each in group["params"])
        self._stepped: dict[nn.Parameter, Tensor] = {}
        self._host_gradients: dict[nn.Parameter, Tensor] = {}
        self._rules: list[UpdateRule] = []
        self._rule_of: dict[nn.Parameter, UpdateRule] = {}
        # The rules' groups, in the order of param_groups.
        self._inner_groups: list[dict[str, Any]] = []
        for part in parts:
            self._add_rule(part)

    def _add_rule(self, part: RuleParameters) -> None:
        parameters = [parameter for members, _ in part.groups for parameter in members]
        stepped = {parameter: self._stepped_tensor(parameter) for parameter in parameters}
        self._stepped |= stepped
        groups = [DecayGroup([stepped[each] for each in members], decay) for members, decay in part.groups]
        rule = part.create(groups, stepped)
        self._rules.append(rule)
        self._rule_of |= dict.fromkeys(parameters, rule)
        self._inner_groups += rule.optimizer.param_groups

    def _stepped_tensor(self, parameter: nn.Parameter) -> Tensor:
        shard = local_shard(parameter.detach())
        if not self._on_host:
            return shard
        copy = _host_buffer(shard)
        self._host_gradients[parameter] = _host_buffer(shard)
        return copy.copy_(shard)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update the weights that have a gradient."""
        for group, inner in zip(self.param_groups, self._inner_groups, strict=True):
            inner["lr"] = group["lr"]
        for parameter, tensor in self._stepped.items():
            if not self._on_host:
                # Module.to gives a weight other memory.
                tensor.data = local_shard(parameter.detach())
            tensor.grad = self._local_gradient(parameter)
        self._wait_for_copies()
        for rule in self._rules:
            rule.optimizer.step()
        for parameter, tensor in self._stepped.items():
            if tensor.grad is None:
                continue
            tensor.grad = None
            if self._on_host:
                local_shard(parameter).copy_(tensor, non_blocking=True)
            self.state[parameter] = self._rule_of[parameter].optimizer.state[tensor]
        # The host copies are changed by the next step.
        self._wait_for_copies()

    def _local_gradient(self, parameter: nn.Parameter) -> Tensor | None:
        if parameter.grad is None:
            return None
        gradient = local_shard(parameter.grad)
        if not self._on_host:
            return gradient
        return self._host_gradients[parameter].copy_(gradient, non_blocking=True)

    def _wait_for_copies(self) -> None:
        if self._on_host and self._on_cuda:
            torch.cuda.synchronize()

    def saved_state(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        """Return the state of this rank's shard by name; empty before the first step."""
        return self._rule_of[parameter].saved_state(self._stepped[parameter])

    def state_shapes(self, parameter: nn.Parameter) -> dict[str, torch.Size]:
        """Return the names and shapes of `saved_state` after a step."""
        return self._rule_of[parameter].state_shapes(self._stepped[parameter])

    @torch.no_grad()
    def restore_state(self, parameter: nn.Parameter, saved: Mapping[str, Tensor]) -> None:
        """Replace the state of this rank's shard by a saved one, after its weight was restored."""
        rule, tensor = self._rule_of[parameter], self._stepped[parameter]
        rule.restore_state(tensor, saved)
        self.state.pop(parameter, None)
        if saved:
            self.state[parameter] = rule.optimizer.state[tensor]
        if self._on_host:
            tensor.copy_(local_shard(parameter))


def _host_buffer(tensor: Tensor) -> Tensor:
    """Return memory on the host for a copy of the tensor; pinned where it is copied to an accelerator."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.device.type == "cuda")
