"""Muon over this rank's rows of the matrices: momentum per shard, orthogonalisation of the whole matrix.

The update of torch.optim.Muon (Jordan et al. 2024; learning rates of Liu et al. 2025). Every rank gathers
the momentum of a matrix in bf16, in which the Newton-Schulz iterations run, computes all of them and keeps
its own rows: no traffic but the gathering, and the result of one rank. A stack of experts, [experts, outputs,
inputs], is sharded by expert, so that no matrix of it needs gathering.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.optim._muon import DEFAULT_A, DEFAULT_B, DEFAULT_C, EPS, _zeropower_via_newtonschulz

from kubealign.spec.sections.optimizers import LearningRateAdjustment
from kubealign.spec.sections.optimizers import Muon as MuonSpec
from kubealign_services.training.torch_backend.optimizers.update_rules import DecayGroup

_COEFFICIENTS = (DEFAULT_A, DEFAULT_B, DEFAULT_C)
_BUFFER = "momentum_buffer"


class ShardedMuon(torch.optim.Optimizer):
    """Steps plain tensors that are shards, or host copies of shards, of matrices or stacks of matrices."""

    def __init__(
        self, groups: Sequence[DecayGroup], weights: Mapping[Tensor, Tensor], spec: MuonSpec
    ) -> None:
        """Create the optimizer.

        Args:
            weights: The weight that each tensor is the shard of: sharded by rows (or experts), or the same
                in full. The orthogonalisation runs on its device.
        """
        super().__init__([group.as_param_group() for group in groups], {"lr": 0.0})
        self._weights = weights
        self._spec = spec

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update all tensors that have a gradient. Collective when the weights are sharded."""
        for group in self.param_groups:
            for tensor in group["params"]:
                if tensor.grad is not None:
                    self._update(tensor, group["lr"], group["weight_decay"])

    def _update(self, tensor: Tensor, rate: float, decay: float) -> None:
        """Compute momentum, orthogonalisation and step of one tensor, in torch's order of operations."""
        assert tensor.grad is not None
        spec, weight = self._spec, self._weights[tensor]
        state = self.state[tensor]
        if _BUFFER not in state:
            state[_BUFFER] = torch.zeros_like(tensor)
        momentum = state[_BUFFER].lerp_(tensor.grad, 1 - spec.momentum)
        update = tensor.grad.lerp(momentum, spec.momentum) if spec.nesterov else momentum
        direction = self._orthogonalise(update.to(weight.device, torch.bfloat16), weight)
        factor = learning_rate_factor(spec.learning_rate_adjustment, *weight.shape[-2:])
        tensor.mul_(1 - rate * decay)
        tensor.add_(direction.to(tensor.device), alpha=-rate * factor)

    def _orthogonalise(self, update: Tensor, weight: Tensor) -> Tensor:
        """Return this rank's part of the orthogonalised update, bf16 of the shape of the update.

        Args:
            update: This rank's part of the momentum, bf16.
        """
        steps = self._spec.newton_schulz_steps
        if update.dim() == 3:
            result = torch.empty_like(update)
            for index, expert in enumerate(update):
                result[index] = _zeropower_via_newtonschulz(expert, _COEFFICIENTS, steps, EPS)
            return result
        if not isinstance(weight, DTensor):
            return _zeropower_via_newtonschulz(update, _COEFFICIENTS, steps, EPS)
        mesh, placements = weight.device_mesh, weight.placements
        shape, start = compute_local_shape_and_global_offset(weight.shape, mesh, placements)
        full = DTensor.from_local(
            update, mesh, placements, run_check=False, shape=weight.shape, stride=weight.stride()
        ).full_tensor()
        result = _zeropower_via_newtonschulz(full, _COEFFICIENTS, steps, EPS)
        return result[start[0] : start[0] + shape[0]]


def learning_rate_factor(adjustment: LearningRateAdjustment, outputs: int, inputs: int) -> float:
    """Return the factor of the learning rate for a matrix of this shape; see `LearningRateAdjustment`."""
    match adjustment:
        case LearningRateAdjustment.MATCH_RMS_ADAM_W:
            return 0.2 * math.sqrt(max(outputs, inputs))
        case LearningRateAdjustment.ORIGINAL:
            return math.sqrt(max(1, outputs / inputs))
        case LearningRateAdjustment.SPECTRAL_UNCLAMPED:
            return math.sqrt(outputs / inputs)


class MuonRule:
    """Muon, whose state is the mean of the gradients: 4 bytes per weight."""

    def __init__(
        self, groups: Sequence[DecayGroup], weights: Mapping[Tensor, Tensor], spec: MuonSpec
    ) -> None:
        """See ShardedMuon."""
        self.optimizer = ShardedMuon(groups, weights, spec)

    def state_shapes(self, tensor: Tensor) -> dict[str, torch.Size]:
        """See UpdateRule."""
        return {_BUFFER: tensor.shape}

    def saved_state(self, tensor: Tensor) -> dict[str, Tensor]:
        """See UpdateRule."""
        return dict(self.optimizer.state.get(tensor, {}))

    def restore_state(self, tensor: Tensor, saved: Mapping[str, Tensor]) -> None:
        """See UpdateRule."""
        self.optimizer.state.pop(tensor, None)
        if saved:
            self.optimizer.state[tensor] = {_BUFFER: saved[_BUFFER].to(tensor.device, copy=True)}
