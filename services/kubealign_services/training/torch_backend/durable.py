"""Durable files: writes that survive a power failure."""

import os
from pathlib import Path


def to_disk(path: Path) -> None:
    """Sync a file's or folder's content to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
