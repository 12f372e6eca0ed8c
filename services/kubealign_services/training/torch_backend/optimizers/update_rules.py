"""Update rules: an optimizer of torch or bitsandbytes over plain tensors, and the layout of its state."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor


@dataclass(frozen=True)
class DecayGroup:
    """Tensors with the same weight decay: plain fp32 tensors, contiguous, possibly empty."""

    tensors: Sequence[Tensor]
    weight_decay: float

    def as_param_group(self) -> dict[str, Any]:
        """Return the group in the form that constructors of optimizers take."""
        return {"params": list(self.tensors), "weight_decay": self.weight_decay}


class UpdateRule(Protocol):
    """An optimizer over plain tensors whose state can be saved and restored."""

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The optimizer, with one parameter group for each `DecayGroup`, in their order."""

    def state_shapes(self, tensor: Tensor) -> dict[str, torch.Size]:
        """Return name and shape of each tensor that describes the state of a parameter after a step."""

    def saved_state(self, tensor: Tensor) -> dict[str, Tensor]:
        """Return the state of a parameter by the names of `state_shapes`; empty before its first step."""

    def restore_state(self, tensor: Tensor, saved: Mapping[str, Tensor]) -> None:
        """Replace the state of a parameter by copies; nothing saved: the state before the first step."""


class AdamWRule:
    """AdamW with fp32 moments."""

    def __init__(
        self, groups: Sequence[DecayGroup], betas: tuple[float, float], epsilon: float, *, fused: bool
    ) -> None:
        """Create torch's AdamW.

        Args:
            fused: Compute a step in one pass over the memory: on a CPU ten times as fast, with other rounding
                in the last bit.
        """
        self.optimizer = torch.optim.AdamW(
            [group.as_param_group() for group in groups],
            lr=0.0,  # each step sets its own
            betas=betas,
            eps=epsilon,
            fused=True if fused else None,
        )

    def state_shapes(self, tensor: Tensor) -> dict[str, torch.Size]:
        """See UpdateRule."""
        return {"step": torch.Size(), "exp_avg": tensor.shape, "exp_avg_sq": tensor.shape}

    def saved_state(self, tensor: Tensor) -> dict[str, Tensor]:
        """See UpdateRule."""
        return dict(self.optimizer.state.get(tensor, {}))

    def restore_state(self, tensor: Tensor, saved: Mapping[str, Tensor]) -> None:
        """See UpdateRule."""
        self.optimizer.state.pop(tensor, None)
        if saved:
            self.optimizer.state[tensor] = {
                # torch reads the number of steps on the host.
                "step": saved["step"].to("cpu", torch.float32, copy=True),
                "exp_avg": saved["exp_avg"].to(tensor.device, copy=True),
                "exp_avg_sq": saved["exp_avg_sq"].to(tensor.device, copy=True),
            }
