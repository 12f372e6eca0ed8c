"""Maps a spec's precision and rank to torch's dtype and device."""

import torch

from kubealign.spec.sections.precision import Precision

DTYPES = {
    Precision.FLOAT32: torch.float32,
    Precision.BFLOAT16: torch.bfloat16,
    Precision.FLOAT16: torch.float16,
}


def compute_dtype(precision: Precision) -> torch.dtype:
    """Return the dtype of the arithmetic, and of the weights that leave the trainer."""
    return DTYPES[precision]


def compute_device(rank: int) -> torch.device:
    """Return this rank's accelerator on the machine, or the CPU."""
    if torch.cuda.is_available():
        return torch.device("cuda", rank % torch.cuda.device_count())
    return torch.device("cpu")
