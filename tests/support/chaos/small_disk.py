"""A small file system in memory for the folder of runs, where this user may mount one."""

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

#: Room for the checkpoints, batches and logs of a chaos job.
SIZE = "96m"


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[bool]:
    """Mount a small file system at the folder. Yield False where that takes rights that this user lacks."""
    folder.mkdir(parents=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True, check=False).returncode != 0:
        yield False
        return
    try:
        yield True
    finally:
        # Lazily: a process of a failed run may still have files open.
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
