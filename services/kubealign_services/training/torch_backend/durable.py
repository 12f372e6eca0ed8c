"""Files that outlive a power cut."""

import os
from pathlib import Path


def to_disk(path: Path) -> None:
    """Return when the file's or folder's content is on the disk, not only in its cache."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
