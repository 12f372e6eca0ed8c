"""What a spec's precision means in torch's types."""

import torch

from kubealign.spec.precision import Precision


def compute_dtype(precision: Precision) -> torch.dtype:
    """The type of the arithmetic, and of the weights that leave the trainer."""
    return {Precision.FLOAT32: torch.float32, Precision.BFLOAT16: torch.bfloat16}[precision]


def compute_device(rank: int) -> torch.device:
    """The accelerator of this rank among the machine's, or the CPU."""
    if torch.cuda.is_available():
        return torch.device("cuda", rank % torch.cuda.device_count())
    return torch.device("cpu")
