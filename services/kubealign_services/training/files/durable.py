"""Durable files: writes that survive a power failure."""

import os
from pathlib import Path


def fsync_path(path: Path) -> None:
    """Sync a file's or folder's content to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
