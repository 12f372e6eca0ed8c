"""Maps a spec's precision and rank to torch's dtype and device."""

import torch

from kubealign.spec.sections.precision import Precision


def compute_dtype(precision: Precision) -> torch.dtype:
    """Return the dtype of the arithmetic, and of the weights that leave the trainer."""
    dtype: torch.dtype = getattr(torch, precision.dtype_name)
    return dtype


def compute_device(rank: int) -> torch.device:
    """Return this rank's accelerator on the machine, or the CPU."""
    if torch.cuda.is_available():
        return torch.device("cuda", rank % torch.cuda.device_count())
    return torch.device("cpu")
