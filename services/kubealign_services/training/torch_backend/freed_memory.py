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

# Of the machine's memory. An engine that generates between two steps has room beside what is kept.
_ENOUGH_AVAILABLE = 0.5
# Steps of ragged lengths leave holes that the next one's blocks do not fit in.
_MOST_GROWTH = 1.25


class FreedMemory:
    """Of one process. `settle` is called after each step."""

    def __init__(self, device: torch.device) -> None:
        self._on_host = device.type == "cpu"
        self._least = 0

    def settle(self) -> None:
        """Keep what the step freed, or give it back. Nothing for a GPU's tensors, and where the C library or
        the system has no way to."""
        trim = _trim()
        if not self._on_host or trim is None:
            return
        resident = _resident_bytes()
        self._least = min(self._least or resident, resident)
        if not stays(resident, self._least, _memory("MemAvailable"), _memory("MemTotal")):
            trim(0)


def stays(resident: int, least: int, available: int, total: int) -> bool:
    """Whether a process keeps what a step has freed. Bytes: what it has now, and the least that it had after
    a step; what the machine could give, and has."""
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
    return (resident - shared) * os.sysconf("SC_PAGE_SIZE")


def _memory(name: str) -> int:
    """A line of /proc/meminfo, in bytes. See proc(5)."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) << 10
    raise OSError(f"/proc/meminfo has no {name}")
