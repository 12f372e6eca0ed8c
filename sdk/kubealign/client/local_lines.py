"""Files of JSON objects, one a line, that grow while they are read. A place in one is an entry id,
`BYTES-0`: so many bytes lie before what comes next. Like a Redis stream's, it says where to go on.

A last line without its end is not there yet; a line that is no object was cut off when its writer was killed.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kubealign.client.errors import JobInvalid
from kubealign.spec.errors import SpecError

_BLOCK = 262_144


def objects_after(path: Path, entry: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """(entry, object) of each whole line after this entry, oldest first."""
    place = _place(entry)
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        if place > file.seek(0, 2):
            # Of another file: this one has been made anew.
            place = 0
        file.seek(max(0, place - 1))
        if place and file.read(1) != b"\n":
            place += len(file.readline())
        for line in file:
            if not line.endswith(b"\n"):
                return
            place += len(line)
            held = _object(line)
            if held is not None:
                yield f"{place}-0", held


def objects_before_end(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """(entry, object) of each whole line, newest first."""
    for place, line in _lines_before_end(path):
        held = _object(line)
        if held is not None:
            yield f"{place}-0", held


def is_after(entry: str, other: str) -> bool:
    return _place(entry) > _place(other)


def _lines_before_end(path: Path) -> Iterator[tuple[int, bytes]]:
    """(where it ends, the line)."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        start = file.seek(0, 2)
        rest, torn = b"", True
        while start > 0:
            size = min(_BLOCK, start)
            start -= size
            file.seek(start)
            rest = file.read(size) + rest
            stop = len(rest)
            if torn:
                stop = rest.rfind(b"\n") + 1
                torn = stop == 0
            while not torn and (cut := rest.rfind(b"\n", 0, stop - 1)) >= 0:
                yield start + stop, rest[cut + 1 : stop]
                stop = cut + 1
            if not torn:
                rest = rest[:stop]
        if not torn:
            yield len(rest), rest


def _place(entry: str) -> int:
    place, _, rest = entry.partition("-")
    if place.isdecimal() and (rest == "" or rest.isdecimal()):
        return int(place)
    error = SpecError("must be an entry that was read before, such as 0-0", "after", entry[:60])
    raise JobInvalid(str(error), [error])


def _object(line: bytes) -> dict[str, Any] | None:
    try:
        held = json.loads(line)
    except ValueError:
        return None
    return held if isinstance(held, dict) else None
