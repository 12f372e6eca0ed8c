"""Control groups of sandboxes: limits of memory and processes of all processes of a sandbox together.

A group is made where this process may write next to or below its own one: as root, or in a tree that systemd
has delegated. Elsewhere the limits are those of each process.
"""

import contextlib
import itertools
import logging
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from kubealign.cgroups import Cgroup, iter_cgroups

log = logging.getLogger(__name__)

_PREFIX = "kubealign-sandbox-"
#: Seconds until a group whose processes have ended can be removed.
_REMOVE_SECONDS = 5.0
_POLL_SECONDS = 0.002
_NUMBERS = itertools.count()


@dataclass(frozen=True)
class _Tree:
    """Folder in which groups are made, and the file for each limit."""

    folder: Path
    memory: str | None
    swap: str | None
    processes: str | None
    events: str | None


class ControlGroup:
    """Group of one sandbox, in each tree."""

    def __init__(self, folders: Sequence[tuple[Path, str | None]]) -> None:
        self._folders = folders

    def add(self, pid: int) -> None:
        """Put a process into the group; its children follow."""
        for folder, _ in self._folders:
            (folder / "cgroup.procs").write_text(str(pid))

    def has_exceeded_memory(self) -> bool:
        """Return whether the kernel has killed a process of the group for its memory."""
        for folder, events in self._folders:
            if events is not None:
                lines = (line.split() for line in (folder / events).read_text().splitlines())
                if any(line[0] == "oom_kill" and int(line[1]) > 0 for line in lines):
                    return True
        return False

    def remove(self) -> None:
        """Remove the group, whose processes have ended."""
        deadline = time.monotonic() + _REMOVE_SECONDS
        for folder, _ in self._folders:
            while not _is_removed(folder):
                if time.monotonic() > deadline:
                    log.warning("the control group %s cannot be removed: it still has processes", folder)
                    break
                # The kernel gives no event for the release of an ended process.
                time.sleep(_POLL_SECONDS)


class ControlGroups:
    """Makes groups where this process may."""

    def __init__(self) -> None:
        self._trees = [tree for tree in _candidates() if _is_usable(tree)]
        self.limits_processes = any(tree.processes for tree in self._trees)
        self.limits_memory = any(tree.memory for tree in self._trees)
        self._remove_leftovers()

    def make(self, memory_bytes: int, processes: int) -> ControlGroup:
        """Return a new group. Raises OSError."""
        name = f"{_PREFIX}{os.getpid()}-{next(_NUMBERS)}"
        folders = []
        for tree in self._trees:
            folder = tree.folder / name
            folder.mkdir()
            folders.append((folder, tree.events))
            if tree.memory:
                (folder / tree.memory).write_text(str(memory_bytes))
            if tree.swap:
                # Without accounting of swap the file is missing.
                with contextlib.suppress(OSError):
                    (folder / tree.swap).write_text("0" if tree.swap.endswith(".max") else str(memory_bytes))
            if tree.processes:
                (folder / tree.processes).write_text(str(processes))
        return ControlGroup(folders)

    def _remove_leftovers(self) -> None:
        """Remove the groups of workers that were killed; their sandboxes have died with them."""
        for tree in self._trees:
            for folder in tree.folder.glob(f"{_PREFIX}*"):
                pid = folder.name.removeprefix(_PREFIX).partition("-")[0]
                if pid.isdecimal() and not Path("/proc", pid).exists():
                    _is_removed(folder)


def _candidates() -> Iterator[_Tree]:
    """Yield the tree of version 2 of the own group or its parent, or those of version 1."""
    for group in itertools.islice(_own_groups("memory", 2), 2):
        controllers = (group.read("cgroup.subtree_control") or "").split()
        if {"memory", "pids"} <= set(controllers):
            yield _Tree(group.folder, "memory.max", "memory.swap.max", "pids.max", "memory.events")
            return
    for group in itertools.islice(_own_groups("memory", 1), 1):
        files = "memory.limit_in_bytes", "memory.memsw.limit_in_bytes"
        yield _Tree(group.folder, *files, None, "memory.oom_control")
    for group in itertools.islice(_own_groups("pids", 1), 1):
        yield _Tree(group.folder, None, None, "pids.max", None)


def _own_groups(controller: str, version: int) -> Iterator[Cgroup]:
    """Yield the groups of this process that exist, from its own up. In a container the path of the host is
    unknown, and the first one is the container's.
    """
    return (each for each in iter_cgroups(controller) if each.version == version and each.folder.is_dir())


def _is_usable(tree: _Tree) -> bool:
    probe = tree.folder / f"{_PREFIX}{os.getpid()}-probe"
    try:
        probe.mkdir()
        limits = all((probe / file).exists() for file in (tree.memory, tree.processes) if file)
        probe.rmdir()
    except OSError:
        return False
    return limits


def _is_removed(folder: Path) -> bool:
    try:
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
