"""Readers of growing files with one JSON object per line.

An entry id `BYTES-0` is a position: the number of bytes before the next line. Like an entry id of a Redis
stream, it states where to resume. A last line without a line end is ignored as incomplete; a line that is
not an object was truncated when its writer was killed.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kubealign.client.errors import JobInvalid
from kubealign.spec.errors import SpecError

_BLOCK_BYTES = 262_144


def objects_after(path: Path, entry: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (entry, object) of each complete line after an entry, oldest first."""
    offset = _offset(entry)
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        if offset > file.seek(0, 2):
            # The entry belongs to a file that has been replaced since.
            offset = 0
        file.seek(max(0, offset - 1))
        if offset and file.read(1) != b"\n":
            offset += len(file.readline())
        for line in file:
            if not line.endswith(b"\n"):
                return
            offset += len(line)
            value = _parse_object(line)
            if value is not None:
                yield f"{offset}-0", value


def objects_from_end(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (entry, object) of each complete line, newest first."""
    for offset, line in _lines_from_end(path):
        value = _parse_object(line)
        if value is not None:
            yield f"{offset}-0", value


def is_after(entry: str, other: str) -> bool:
    """Return True if `entry` lies after `other`."""
    return _offset(entry) > _offset(other)


def _lines_from_end(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield (end offset, line), newest first."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        start = file.seek(0, 2)
        buffer, is_incomplete = b"", True
        while start > 0:
            size = min(_BLOCK_BYTES, start)
            start -= size
            file.seek(start)
            buffer = file.read(size) + buffer
            stop = len(buffer)
            if is_incomplete:
                stop = buffer.rfind(b"\n") + 1
                is_incomplete = stop == 0
            while not is_incomplete and (cut := buffer.rfind(b"\n", 0, stop - 1)) >= 0:
                yield start + stop, buffer[cut + 1 : stop]
                stop = cut + 1
            if not is_incomplete:
                buffer = buffer[:stop]
        if not is_incomplete:
            yield len(buffer), buffer


def _offset(entry: str) -> int:
    offset, _, sequence = entry.partition("-")
    if offset.isdecimal() and (sequence == "" or sequence.isdecimal()):
        return int(offset)
    error = SpecError("must be an entry that was read before, such as 0-0", "after", entry[:60])
    raise JobInvalid(str(error), [error])


def _parse_object(line: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
