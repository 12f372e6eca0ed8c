"""Pins of a run's checkpoints, which its retention never removes: one file a step, pins/STEP.

The command that pins and the driver that removes old checkpoints hold the same lock, so a checkpoint is
either removed before the pin is refused, or stays.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

#: Folder of the pins in the run directory.
PINS_FOLDER = "pins"
_LOCK_FILE = ".lock"


@contextmanager
def pins_lock(run_dir: Path) -> Iterator[None]:
    """Hold the lock of a run's pins, waiting for its holder; no lock where there is no folder of pins.

    Raises OSError.
    """
    folder = run_dir / PINS_FOLDER
    if not folder.exists():
        yield
        return
    descriptor = os.open(folder / _LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def pin_files(run_dir: Path) -> list[Path]:
    """Return the files of the pins, by step."""
    folder = run_dir / PINS_FOLDER
    names = [path.name for path in folder.iterdir()] if folder.exists() else []
    return [folder / name for name in sorted((name for name in names if name.isdecimal()), key=int)]


def pinned_steps(run_dir: Path) -> set[int]:
    """Return the steps whose checkpoints are pinned."""
    return {int(path.name) for path in pin_files(run_dir)}
