"""Number of usable cores from affinity and cgroup quotas."""

import os
from pathlib import Path

from kubealign.cgroups import iter_cgroups
from kubealign.local.processes.cpu import available_cores, usable_cores
from support.cgroup_files import write_group, write_memberships


def test_available_cores_are_within_the_affinity_mask() -> None:
    assert 1 <= available_cores() <= len(os.sched_getaffinity(0))


def test_cgroup_v2_uses_the_tightest_quota_rounded_up(tmp_path: Path) -> None:
    """Own quota 250 of 100 ms, the parent's 150 of 100 ms: 1.5 cores, rounded up to two."""
    root = tmp_path / "cg"
    write_group(root, cgroup__procs="")
    write_group(root / "a", cpu__max="150000 100000")
    write_group(root / "a/b", cpu__max="250000 100000")
    write_group(root / "a/b/c", cpu__max="max 100000")
    own = write_memberships(tmp_path / "self", "0::/a/b/c")
    assert usable_cores(16, iter_cgroups("cpu", own, root)) == 2
    assert usable_cores(1, iter_cgroups("cpu", own, root)) == 1


def test_cgroup_v1_uses_the_parent_quota(tmp_path: Path) -> None:
    """No own quota, half a core for the parent; the path of another controller is ignored."""
    root = tmp_path / "cg"
    write_group(root / "cpu/pod", cpu__cfs_quota_us="50000", cpu__cfs_period_us="100000")
    write_group(root / "cpu/pod/own", cpu__cfs_quota_us="-1", cpu__cfs_period_us="100000")
    own = write_memberships(tmp_path / "self", "5:memory:/elsewhere", "4:cpu,cpuacct:/pod/own", "0::/")
    assert usable_cores(16, iter_cgroups("cpu", own, root)) == 1
    unlimited = write_memberships(tmp_path / "self", "5:cpuset:/pod", "0::/")
    assert usable_cores(16, iter_cgroups("cpu", unlimited, root)) == 16


def test_a_container_sees_its_group_as_the_root(tmp_path: Path) -> None:
    root = tmp_path / "cg"
    write_group(root, cpu__max="300000 100000")
    own = write_memberships(tmp_path / "self", "0::/kubepods/pod7")
    assert usable_cores(16, iter_cgroups("cpu", own, root)) == 3


def test_no_cgroups_means_no_limit(tmp_path: Path) -> None:
    assert usable_cores(16, iter_cgroups("cpu", tmp_path / "none", tmp_path)) == 16
