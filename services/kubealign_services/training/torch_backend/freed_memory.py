"""Giving freed memory back to the operating system, where others need it.

glibc keeps what a step's activations lay in for the next allocation. Given back, the next step has to have
all of it anew, page by page and cleared: a virtual machine's even from its host. That takes 2 to 4 % of a
step (docs/training-backends.md).
"""

import ctypes
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch

from kubealign_services.free_memory import free_bytes

# Of the machine's memory. An engine that generates between two steps has room beside what is kept.
_ENOUGH_AVAILABLE = 0.5
# Steps of ragged lengths leave holes that the next one's blocks do not fit in.
_MOST_GROWTH = 1.25
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class FreedMemory:
    """Of one process. `settle` is called after each step."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._least = 0

    def settle(self) -> None:
        """Keep what the step freed, or give it back. Nothing for a GPU's tensors, and where the C library or
        the system has no way to."""
        trim = _trim()
        if self._device.type != "cpu" or trim is None:
            return
        resident = _resident_bytes()
        self._least = min(self._least or resident, resident)
        total = os.sysconf("SC_PHYS_PAGES") * _PAGE_BYTES
        if not stays(resident, self._least, free_bytes(self._device), total):
            trim(0)


def stays(resident: int, least: int, available: int, total: int) -> bool:
    """Whether a process keeps what a step has freed. Bytes: what it has now, and the least that it had after
    a step; what it could still get, its container's limit counted, and what the machine has."""
    return available >= _ENOUGH_AVAILABLE * total and resident <= _MOST_GROWTH * least


@cache
def _trim() -> Callable[[int], int] | None:
    """glibc's malloc_trim."""
    try:
        found: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError):
        return None
    return found


def _resident_bytes() -> int:
    """Of its own: weights that others map too are not the allocator's. See proc_pid_statm(5)."""
    _, resident, shared, *_ = map(int, Path("/proc/self/statm").read_text().split())
    return (resident - shared) * _PAGE_BYTES
