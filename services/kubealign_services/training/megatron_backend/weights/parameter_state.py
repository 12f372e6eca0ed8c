"""Optimiser state of a parameter, as stored in a checkpoint."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class ParameterState:
    """State of one of this rank's parameters, in full, fp32 in its shape: the master weight, and the moving
    averages of its
    gradient and of the gradient's square.
    """

    master: Tensor
    exp_avg: Tensor
    exp_avg_sq: Tensor
