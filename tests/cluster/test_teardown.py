"""Clusters leave nothing on the machine, at a normal end and after a kill of the test process."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cluster.support.namespaces import Addresses, NodeNamespaces
from cluster.support.requirements import missing_for_a_node

_TESTS = Path(__file__).resolve().parents[1]
_END_SECONDS = 60
# Fixed paths of a node, which must never appear on the machine itself.
_FOLDERS = ("/var/lib/cni", "/var/lib/kubelet", "/var/log/pods", "/run/containerd")
# A control plane has no node, so it consists of processes only; the cluster also runs a pod.
_CONTROL_PLANE = """
import sys
from pathlib import Path
from cluster.support.control_plane import ControlPlane
with ControlPlane(Path(sys.argv[1])):
    print("up", flush=True)
    sys.stdin.read()
"""
_CLUSTER = """
import sys
from pathlib import Path
from cluster.support.cluster import Cluster
from cluster.support.host_bind import HOST_BIND
with Cluster(Path(sys.argv[1])) as cluster:
    waits = ("--", "python", "-c", "import signal; signal.pause()")
    cluster.kubectl("run", "stays", f"--image={HOST_BIND}", *waits)
    cluster.kubectl.wait_for("pod/stays", "condition=Ready")
    print("up", cluster.node.addresses.number, flush=True)
    sys.stdin.read()
"""


needs_a_node = pytest.mark.skipif(
    bool(missing_for_a_node()), reason=f"a real node needs {', '.join(missing_for_a_node())}"
)


@contextmanager
def running(program: str, folder: Path) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """Run a process that keeps a cluster until stdin ends; yield the process and its first line, split."""
    environment = {**os.environ, "PYTHONPATH": str(_TESTS)}
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    try:
        assert process.stdout is not None
        words = process.stdout.readline().split()
        assert words[:1] == ["up"], f"no cluster came up in {folder}"
        yield process, words
    finally:
        process.kill()
        process.wait(_END_SECONDS)


def processes_of(folder: Path) -> list[str]:
    """Return the command lines of all processes that name a folder."""
    command_lines = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if str(folder) in words:
            command_lines.append(words)
    return command_lines


def eventually_none(what: Callable[[], list[str]]) -> None:
    deadline = time.monotonic() + _END_SECONDS
    while left := what():
        assert time.monotonic() < deadline, f"left after {_END_SECONDS} s: {left}"
        time.sleep(0.05)


def lines(*command: str) -> list[str]:
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    return done.stdout.splitlines()


def shared() -> list[str]:
    """Return the machine's own packet filter rules and node folders, which no cluster may change."""
    rules = [line for line in lines("iptables-save") if line.startswith("-")]
    return [*rules, *(path for path in _FOLDERS if Path(path).exists())]


def traces(number: int, folder: Path) -> list[str]:
    """Return the processes, mounts and networks of one cluster. Other clusters may run concurrently."""
    here = Addresses(number)
    mounts = [row for row in Path("/proc/self/mountinfo").read_text().splitlines() if str(folder) in row]
    networks = [row for row in lines("ip", "-o", "address") + lines("ip", "route") if here.link in row]
    return [*processes_of(folder), *mounts, *networks]


def groups(number: int) -> list[str]:
    """Return the control groups of a cluster's pods."""
    return [str(path) for path in Path("/sys/fs/cgroup").glob(f"**/{Addresses(number).link}-*")]


def test_a_control_plane_ends_with_a_killed_test(tmp_path: Path) -> None:
    with running(_CONTROL_PLANE, tmp_path / "killed") as (process, _):
        assert len(processes_of(tmp_path)) > 4
        process.send_signal(signal.SIGKILL)
        process.wait(_END_SECONDS)
        eventually_none(lambda: processes_of(tmp_path))


@needs_a_node
def test_closed_namespaces_leave_the_link_of_the_next_cluster(tmp_path: Path) -> None:
    first, second = NodeNamespaces(tmp_path / "first"), NodeNamespaces(tmp_path / "second")
    first.open()
    first.close()
    try:
        # Usually with the number of the first, which is free again.
        second.open()
        first.close()
        assert Path("/sys/class/net", second.addresses.link).exists()
    finally:
        second.close()


@needs_a_node
def test_a_cluster_leaves_nothing(tmp_path: Path) -> None:
    before = shared()
    with running(_CLUSTER, tmp_path / "ended") as (process, words):
        number = int(words[1])
        assert any(Addresses(number).link in trace for trace in traces(number, tmp_path))
        assert groups(number) != []
        process.communicate("", timeout=_END_SECONDS)
        assert process.returncode == 0
    assert traces(number, tmp_path) == []
    assert groups(number) == []
    assert shared() == before
    assert not (tmp_path / "ended" / "node" / "data").exists()


@needs_a_node
def test_a_cluster_ends_with_a_killed_test(tmp_path: Path) -> None:
    before = shared()
    with running(_CLUSTER, tmp_path / "killed") as (process, words):
        process.send_signal(signal.SIGKILL)
        process.wait(_END_SECONDS)
        eventually_none(lambda: traces(int(words[1]), tmp_path))
    assert shared() == before
