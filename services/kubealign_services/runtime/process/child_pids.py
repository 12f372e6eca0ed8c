"""Child processes of another process, from /proc."""

import contextlib
from pathlib import Path


def list_child_pids(pid: int) -> list[int]:
    """Return the child pids of all threads of a process; empty where it has ended."""
    while (process := Path(f"/proc/{pid}")).exists():
        # A thread that ends meanwhile leaves its children to another one, which may have been read before.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            tasks = [(task / "children").read_text() for task in (process / "task").iterdir()]
            return [int(child) for task in tasks for child in task.split()]
    return []
