"""Returns freed memory to the operating system when other processes need it.

glibc keeps the memory of a step's activations for the next allocation. Once returned, the next step has to
fault in all of it again, page by page and zeroed, in a virtual machine even from its host. That takes 2 to 4
% of a step (docs/training-backends.md).
"""

import ctypes
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch

from kubealign_services.runtime.free_memory import free_bytes

# Fraction of the machine's memory. Leaves room for an engine that generates between two steps.
_MIN_AVAILABLE_FRACTION = 0.5
# Steps of ragged lengths fragment the heap: the next step's blocks do not fit into the holes.
_MAX_GROWTH = 1.25
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class MallocTrimmer:
    """Trims the malloc heap of one process. Call `maybe_trim` after each step."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._min_resident = 0

    def maybe_trim(self) -> None:
        """Keep the memory that the step freed, or return it.

        Does nothing for a GPU's tensors, and without malloc_trim.
        """
        trim = _malloc_trim()
        if self._device.type != "cpu" or trim is None:
            return
        resident = _resident_bytes()
        self._min_resident = min(self._min_resident or resident, resident)
        total = os.sysconf("SC_PHYS_PAGES") * _PAGE_BYTES
        if not keep_freed_memory(resident, self._min_resident, free_bytes(self._device), total):
            trim(0)


def keep_freed_memory(resident: int, least: int, available: int, total: int) -> bool:
    """Return True when a process keeps the memory that a step has freed. All values are bytes.

    Args:
        resident: Current memory of the process.
        least: Lowest memory of the process after any step.
        available: Memory that it could still allocate within its container's limit.
        total: Memory of the machine.
    """
    return available >= _MIN_AVAILABLE_FRACTION * total and resident <= _MAX_GROWTH * least


@cache
def _malloc_trim() -> Callable[[int], int] | None:
    """Return glibc's malloc_trim, or None."""
    try:
        trim: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError):
        return None
    return trim


def _resident_bytes() -> int:
    """Return private resident bytes: weights mapped by other processes too are not the allocator's.

    See proc_pid_statm(5).
    """
    _, resident, shared, *_ = map(int, Path("/proc/self/statm").read_text().split())
    return (resident - shared) * _PAGE_BYTES
