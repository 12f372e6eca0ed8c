"""Free memory, read from the kernel's files."""

from pathlib import Path

import torch

from kubealign.cgroups import iter_cgroups
from kubealign_services.runtime import free_memory
from support.cgroup_files import write_group, write_memberships


def left(memberships: Path, root: Path) -> list[int]:
    return list(free_memory.remaining_in_groups(iter_cgroups("memory", memberships, root)))


def test_free_memory_of_this_machine() -> None:
    free = free_memory.free_bytes(torch.device("cpu"))
    total = int(Path("/proc/meminfo").read_text().splitlines()[0].split()[1]) * 1024
    assert 0 < free < total


def test_available_not_free(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 900 kB\nMemFree: 10 kB\nMemAvailable: 300 kB\n")
    assert free_memory._available_bytes(tmp_path / "meminfo") == 300 * 1024


def test_control_groups_version_two(tmp_path: Path) -> None:
    """The process's own group has no limit; the pod's has 1000 with 700 used, 50 of them files; its parent's
    5000 with 4900 used.
    """
    stat, root = "anon 1\ninactive_file {}", tmp_path / "cg"
    write_group(root, cgroup__procs="")
    write_group(root / "a", memory__max="5000", memory__current="4900", memory__stat=stat.format(0))
    write_group(root / "a/b", memory__max="1000", memory__current="700", memory__stat=stat.format(50))
    write_group(root / "a/b/c", memory__max="max", memory__current="600", memory__stat=stat.format(0))
    assert left(write_memberships(tmp_path / "self", "0::/a/b/c"), root) == [350, 100]


def test_control_groups_version_one(tmp_path: Path) -> None:
    write_group(
        tmp_path / "cg/memory/pod",
        memory__limit_in_bytes="2000",
        memory__usage_in_bytes="1500",
        memory__stat="total_inactive_file 300",
    )
    own = write_memberships(tmp_path / "self", "5:cpu,cpuacct:/pod", "4:memory:/pod", "0::/")
    assert left(own, tmp_path / "cg") == [800]


def test_container_sees_its_group_as_the_root(tmp_path: Path) -> None:
    write_group(tmp_path / "cg", memory__max="1000", memory__current="1100", memory__stat="inactive_file 0")
    assert left(write_memberships(tmp_path / "self", "0::/kubepods/pod7"), tmp_path / "cg") == [0]
