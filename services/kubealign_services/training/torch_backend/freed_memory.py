"""Giving freed memory back to the operating system.

glibc keeps what a step's activations lay in (a quarter of the process, for the small models that CPUs train)
for the next allocation. Between two steps others need it more: the engine on the same machine generates then.
"""

import ctypes
from collections.abc import Callable
from functools import cache

import torch


def give_back(device: torch.device) -> None:
    """After a step whose tensors lay in the host's memory. Nothing where the C library has no way to."""
    trim = _trim()
    if device.type == "cpu" and trim is not None:
        trim(0)


@cache
def _trim() -> Callable[[int], int] | None:
    """glibc's malloc_trim."""
    try:
        found: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError):
        return None
    return found
