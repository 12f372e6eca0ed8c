"""File operations that have reached the disk when they return."""

import os
from collections.abc import Iterable
from pathlib import Path


def sync(path: Path) -> None:
    """Flush a file's data, or a folder's entries, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_new(path: Path, data: bytes) -> None:
    """Make a file that does not exist yet. Its folder is not flushed."""
    _write(path, data, os.O_WRONLY | os.O_CREAT | os.O_EXCL)


def replace(path: Path, chunks: Iterable[bytes]) -> None:
    """Give a file new contents: at any moment it holds either all of the old or all of the new."""
    temporary = path.with_name(f".{path.name}.new")
    _write(temporary, b"".join(chunks), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.replace(temporary, path)  # noqa: PTH105 - one way of naming the calls that the crash tests count
    sync(path.parent)


def _write(path: Path, data: bytes, flags: int) -> None:
    descriptor = os.open(path, flags, 0o644)
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
