"""How much memory there is to take."""

from collections.abc import Iterator
from pathlib import Path

import torch

_CGROUPS = Path("/sys/fs/cgroup")


def free_bytes(device: torch.device) -> int:
    """Of a GPU: what nobody has. Of a CPU: what the kernel can give without swapping, or what is left of the
    limit of this process's control groups (versions 1 and 2) where that is less."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return min(_available(Path("/proc/meminfo")), *_left(Path("/proc/self/cgroup"), _CGROUPS))


def _available(meminfo: Path) -> int:
    for line in meminfo.read_text().splitlines():
        name, _, amount = line.partition(":")
        if name == "MemAvailable":
            return int(amount.split()[0]) * 1024
    raise ValueError(f"{meminfo} has no MemAvailable")


def _left(memberships: Path, root: Path) -> Iterator[int]:
    """What each control group of this process with a limit has left, from its own up to the root: what was
    read of files does not count as used, for the kernel gives that back."""
    yield _NO_LIMIT
    for line in memberships.read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            base, names = root, ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            base = root / "memory"
        else:
            continue
        yield from _left_within(base, path, *names)


def _left_within(base: Path, path: str, limit: str, usage: str, files: str) -> Iterator[int]:
    # In a container the path may be the host's, while its own group is mounted as the root.
    own = base / path.lstrip("/")
    groups = [own, *own.parents] if own.is_dir() else [base]
    for group in groups:
        if not group.is_relative_to(base):
            return
        try:
            most = (group / limit).read_text().strip()
            used = int((group / usage).read_text())
            statistics = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        except FileNotFoundError:
            # The root of version 2 has no limit.
            continue
        if most != "max":
            yield max(0, int(most) - used + int(statistics.get(files, 0)))


_NO_LIMIT = 1 << 62
