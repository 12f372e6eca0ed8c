"""Maps a spec's precision and rank to torch's dtype and device."""

import torch

from kubealign.spec.sections.precision import Precision


def compute_dtype(precision: Precision) -> torch.dtype:
    """Return the dtype of the arithmetic, and of the weights that leave the trainer."""
    dtype: torch.dtype = getattr(torch, precision.dtype_name)
    return dtype


def compute_device() -> torch.device:
    """Return the first accelerator that the process sees, or the CPU.

    Whoever starts the process restricts it to its own devices.
    """
    if torch.cuda.is_available():
        return torch.device("cuda", 0)
    return torch.device("cpu")
