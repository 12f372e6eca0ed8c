"""What an optimiser keeps of a parameter, as a checkpoint takes it and gives it back."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class ParameterState:
    """What is kept of one of this rank's parameters, whole, fp32 in its shape: the master weight, and the
    means of its gradient and of the gradient's square."""

    master: Tensor
    exp_avg: Tensor
    exp_avg_sq: Tensor
