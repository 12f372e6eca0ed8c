"""How much memory there is, from what the kernel says."""

from pathlib import Path

import torch

from kubealign_services import free_memory


def group(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)


def test_what_this_machine_has() -> None:
    free = free_memory.free_bytes(torch.device("cpu"))
    total = int(Path("/proc/meminfo").read_text().splitlines()[0].split()[1]) * 1024
    assert 0 < free < total


def test_available_not_free(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 900 kB\nMemFree: 10 kB\nMemAvailable: 300 kB\n")
    assert free_memory._available(tmp_path / "meminfo") == 300 * 1024


def test_the_tightest_group_of_version_two(tmp_path: Path) -> None:
    """The pod's limit of 1000 with 700 used, 50 of them files; its parent's of 5000 with 4900 used."""
    stat = "anon 1\ninactive_file {}\n"
    group(tmp_path / "cg", cgroup__procs="")
    group(tmp_path / "cg/a", memory__max="5000", memory__current="4900", memory__stat=stat.format(0))
    group(tmp_path / "cg/a/b", memory__max="1000", memory__current="700", memory__stat=stat.format(50))
    group(tmp_path / "cg/a/b/c", memory__max="max", memory__current="600", memory__stat=stat.format(0))
    (tmp_path / "self").write_text("0::/a/b/c\n")
    assert sorted(free_memory._left(tmp_path / "self", tmp_path / "cg"))[:2] == [100, 350]


def test_version_one(tmp_path: Path) -> None:
    group(
        tmp_path / "cg/memory/pod",
        memory__limit_in_bytes="2000",
        memory__usage_in_bytes="1500",
        memory__stat="total_inactive_file 300\n",
    )
    (tmp_path / "self").write_text("5:cpu,cpuacct:/pod\n4:memory:/pod\n0::/\n")
    assert min(free_memory._left(tmp_path / "self", tmp_path / "cg")) == 800


def test_a_container_sees_its_group_as_the_root(tmp_path: Path) -> None:
    group(tmp_path / "cg", memory__max="1000", memory__current="1100", memory__stat="inactive_file 0\n")
    (tmp_path / "self").write_text("0::/kubepods/pod7\n")
    assert min(free_memory._left(tmp_path / "self", tmp_path / "cg")) == 0
