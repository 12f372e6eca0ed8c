"""Pins processes of a run to one core each."""

import asyncio
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from kubealign.local.errors import RunRefused
from kubealign.local.run_dir.control_socket import list_processes

_SECONDS_BETWEEN = 0.2


@contextmanager
def pinned(run_dir: Path, cores: Mapping[str, int]) -> Iterator[None]:
    """Pin the processes of the run to cores within the block, with all their threads; new threads are pinned
    at the next poll.

    cores: name prefix of processes -> core."""
    done = threading.Event()

    def keep() -> None:
        while not done.wait(_SECONDS_BETWEEN):
            for name, pid in _running(run_dir).items():
                for prefix, core in cores.items():
                    if name.startswith(prefix):
                        _pin(pid, core)

    thread = threading.Thread(target=keep, name="pinned", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(30)


def _running(run_dir: Path) -> dict[str, int]:
    try:
        processes = asyncio.run(list_processes(run_dir))
    except RunRefused:
        # The run has not begun, or has ended.
        return {}
    return {process["name"]: process["pid"] for process in processes if process["pid"]}


def _pin(pid: int, core: int) -> None:
    """Pin each thread of a process: a process's affinity is that of its first thread only."""
    try:
        threads = [int(entry.name) for entry in Path(f"/proc/{pid}/task").iterdir()]
    except OSError:
        return
    for thread in threads:
        try:
            if os.sched_getaffinity(thread) != {core}:
                os.sched_setaffinity(thread, {core})
        except (ProcessLookupError, PermissionError):
            continue
