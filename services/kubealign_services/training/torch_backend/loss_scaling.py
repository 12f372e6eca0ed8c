"""Dynamic loss scaling for fp16, whose smallest number is 6e-8: smaller gradients would be rounded to zero.

The loss is multiplied by a scale before the backward pass, and the gradient divided by it in fp32. A gradient
that overflows costs one optimiser step and halves the scale; a long run of steps without overflow doubles it
(Micikevicius et al. 2018, "Mixed Precision Training", section 3.2). The constants are torch's and TRL's.
"""

from dataclasses import dataclass

import torch

INITIAL_SCALE = 2.0**16
GROWTH_FACTOR = 2.0
BACKOFF_FACTOR = 0.5
#: Consecutive optimiser steps without overflow after which the scale grows.
GROWTH_INTERVAL = 2000
#: A gradient that overflows at this scale is not a matter of scaling: the run has diverged. fairseq stops at
#: 1e-4; 2^-14 is the nearest power of 2 below it, 30 consecutive overflows below the initial scale.
MINIMUM_SCALE = 2.0**-14


@dataclass(frozen=True)
class LossScaleState:
    """Part of a checkpoint.

    Attributes:
        scale: Factor of the next loss.
        growth_tracker: Consecutive optimiser steps without overflow since the scale changed.
    """

    scale: float = INITIAL_SCALE
    growth_tracker: int = 0


class LossScaler:
    """torch's GradScaler, driven so that the loss may be on another device than the gradients."""

    def __init__(self, device: torch.device, state: LossScaleState | None = None) -> None:
        """Create the scaler.

        Args:
            device: Device of the gradients.
            state: None for that of a new run.
        """
        self._scaler = torch.amp.GradScaler(
            device.type,
            init_scale=INITIAL_SCALE,
            growth_factor=GROWTH_FACTOR,
            backoff_factor=BACKOFF_FACTOR,
            growth_interval=GROWTH_INTERVAL,
        )
        # GradScaler keeps its state on the device of the first loss. Objectives compute the loss on the CPU:
        # the overflow flag, copied there asynchronously, could be read before it has arrived.
        self._scaler.scale(torch.zeros((), device=device))
        self.load(state)

    @property
    def scale(self) -> float:
        """Factor of the next loss, a power of 2."""
        return self._scaler.get_scale()

    @property
    def is_exhausted(self) -> bool:
        """True when the scale has fallen below the minimum."""
        return self.scale < MINIMUM_SCALE

    def unscale(self, optimizer: torch.optim.Optimizer) -> bool:
        """Divide the optimiser's gradients by the scale, and adapt the scale.

        Returns True when a gradient is NaN or infinite on any rank, in which case the optimiser step must be
        skipped. Collective when the gradients are sharded.
        """
        before = self.scale
        self._scaler.unscale_(optimizer)
        self._scaler.update()
        return self.scale < before

    def state(self) -> LossScaleState:
        """Return the state for a checkpoint."""
        state = self._scaler.state_dict()
        return LossScaleState(float(state["scale"]), int(state["_growth_tracker"]))

    def load(self, state: LossScaleState | None) -> None:
        """Restore a checkpoint's state; None: that of a new run, for a checkpoint of another precision."""
        restored = state or LossScaleState()
        values = {"scale": restored.scale, "_growth_tracker": restored.growth_tracker}
        self._scaler.load_state_dict(self._scaler.state_dict() | values)
