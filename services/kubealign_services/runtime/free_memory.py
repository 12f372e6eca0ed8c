"""Free memory of a device."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import torch

from kubealign.cgroups import Cgroup, iter_cgroups

#: By version of the control groups: files of limit and usage, and memory.stat's name of inactive page cache.
_CONTROL_GROUP_FILES = {
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    2: ("memory.max", "memory.current", "inactive_file"),
}


def free_bytes(device: torch.device) -> int:
    """Return the free bytes of a device.

    GPU: unallocated memory. CPU: memory that the kernel can provide without swapping, or the rest of the
    limit of this process's control groups (versions 1 and 2) where that is less.
    """
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return min([_available_bytes(Path("/proc/meminfo")), *remaining_in_groups(iter_cgroups("memory"))])


def _available_bytes(meminfo: Path) -> int:
    for line in meminfo.read_text().splitlines():
        name, _, amount = line.partition(":")
        if name == "MemAvailable":
            return int(amount.split()[0]) * 1024
    raise ValueError(f"{meminfo} has no MemAvailable")


def remaining_in_groups(groups: Iterable[Cgroup]) -> Iterator[int]:
    """Yield the bytes left in each group that has a limit.

    Page cache does not count as used, because the kernel reclaims it.
    """
    for group in groups:
        limit, usage, files = _CONTROL_GROUP_FILES[group.version]
        most, used, statistics = group.read(limit), group.read(usage), group.read("memory.stat")
        if most is None or used is None or statistics is None or most == "max":
            continue
        kinds = dict(line.split() for line in statistics.splitlines())
        yield max(0, int(most) - int(used) + int(kinds.get(files, 0)))
