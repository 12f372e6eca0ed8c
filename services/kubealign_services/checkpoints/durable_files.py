"""File operations that are durable (fsynced) when they return."""

import os
from collections.abc import Iterable
from pathlib import Path


def fsync_path(path: Path) -> None:
    """Flush a file's data, or a directory's entries, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def create_file(path: Path, data: bytes) -> None:
    """Create a file that does not exist yet and write it durably. The parent directory is not flushed."""
    _write(path, data, os.O_WRONLY | os.O_CREAT | os.O_EXCL)


def replace_file(path: Path, chunks: Iterable[bytes]) -> None:
    """Atomically replace the contents of a file: a reader sees either all old or all new bytes."""
    temporary = path.with_name(f".{path.name}.new")
    _write(temporary, b"".join(chunks), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.replace(temporary, path)  # noqa: PTH105 - the crash tests count calls by this name
    fsync_path(path.parent)


def _write(path: Path, data: bytes, flags: int) -> None:
    descriptor = os.open(path, flags, 0o644)
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
