"""Rows of JSON Lines, JSON and Parquet files, with the position of each, from which reading can continue.

Files are read directly, without a cache and without network access. (The JSON reader of `datasets` would
turn text that looks like a date into one, and reject large integers; a reward must get exactly the file's
content.)
"""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeAlias

import pyarrow
import pyarrow.parquet

from kubealign_services.data.errors import DataError
from kubealign_services.data.sources.source_files import file_format

#: One row: column -> any JSON value (or Parquet value).
SourceRow: TypeAlias = Mapping[str, Any]

# With or without a byte-order mark.
_ENCODING = "utf-8-sig"
_BATCH_ROWS = 1024
# After a carriage return that ends a line by itself.
_AFTER_RETURN = re.compile(rb"(?<=\r)(?!\n)")


class RowPosition(NamedTuple):
    """Position of a row in a list of files.

    row: number of the row through all files. file: index of its file. row_in_file: number of the row in that
    file. offset, line: of a row of JSON Lines, the byte at which its line begins and the line's number. All
    count from 0.
    """

    row: int = 0
    file: int = 0
    row_in_file: int = 0
    offset: int = 0
    line: int = 0


#: Position of the first row.
START = RowPosition()


def read_rows(
    files: Mapping[Path, str], start: RowPosition = START
) -> Iterator[tuple[RowPosition, SourceRow]]:
    """Yield the rows from a position on, without those before it.

    Of JSON Lines only the bytes from the position on are read, of Parquet the row groups from that of the
    position on. A JSON list is read as one.

    Args:
        files: File -> field of the spec that names it, in the order of reading.
        start: Position of a row of these files.

    Raises DataError for a file that cannot be read, or a row that is no object.
    """
    number, position = start.row, start
    for index, (path, spec_path) in enumerate(files.items()):
        if index < start.file:
            continue
        rows = _wrap_read_errors(_file_rows(path, position), path, spec_path)
        for row_in_file, offset, line, row in rows:
            yield RowPosition(number, index, row_in_file, offset, line), row
            number += 1
        position = START


def is_json_list(path: Path) -> bool:
    """Return True if a JSON file holds one list, not a row in each line."""
    with path.open(encoding=_ENCODING) as file:
        return next((line for line in file if line.strip()), "").lstrip().startswith("[")


def _file_rows(path: Path, start: RowPosition) -> Iterator[tuple[int, int, int, SourceRow]]:
    """Yield (number of the row in the file, offset, line, row) from a position on."""
    if file_format(path) != "JSON":
        yield from _parquet_rows(path, start.row_in_file)
    elif start.offset == 0 and is_json_list(path):
        for number, row in enumerate(_parse_json(path, 1, path.read_text(_ENCODING))):
            if not isinstance(row, dict):
                raise _no_object(row, f"{path}, row {number + 1}")
            if number >= start.row_in_file:
                yield number, 0, 0, row
    else:
        with path.open("rb") as file:
            yield from _json_lines(file, path, start)


def _json_lines(file: BinaryIO, path: Path, start: RowPosition) -> Iterator[tuple[int, int, int, SourceRow]]:
    file.seek(start.offset)
    number, line = start.row_in_file, start.line
    for offset, content in _lines(file, start.offset):
        text = content.decode() if offset else content.decode(_ENCODING)
        if text.strip():
            row = _parse_json(path, line + 1, text.rstrip("\r\n"))
            if not isinstance(row, dict):
                raise _no_object(row, f"{path}, line {line + 1}")
            yield number, offset, line, row
            number += 1
        line += 1


def _lines(file: BinaryIO, offset: int) -> Iterator[tuple[int, bytes]]:
    """Yield (offset, line) of lines that end with a line feed, a carriage return, or both."""
    for content in file:
        if b"\r" not in content:
            yield offset, content
            offset += len(content)
            continue
        for part in filter(None, _AFTER_RETURN.split(content)):
            yield offset, part
            offset += len(part)


def _parse_json(path: Path, number: int, text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        line = number + error.lineno - 1
        raise DataError(f"{path}, line {line}, column {error.colno}: not JSON: {error.msg}") from error


def _no_object(row: Any, where: str) -> DataError:
    kind = {list: "a list", str: "text", type(None): "null"}.get(type(row), type(row).__name__)
    return DataError(f"{where}: a row is an object, not {kind}")


def _parquet_rows(path: Path, start: int) -> Iterator[tuple[int, int, int, SourceRow]]:
    with pyarrow.parquet.ParquetFile(path) as file:
        first, group = 0, 0
        while group < file.num_row_groups and first + file.metadata.row_group(group).num_rows <= start:
            first += file.metadata.row_group(group).num_rows
            group += 1
        for batch in file.iter_batches(_BATCH_ROWS, row_groups=range(group, file.num_row_groups)):
            skipped = min(max(0, start - first), len(batch))
            for index, row in enumerate(batch.slice(skipped).to_pylist()):
                yield first + skipped + index, 0, 0, row
            first += len(batch)


def _wrap_read_errors(
    rows: Iterator[tuple[int, int, int, SourceRow]], path: Path, spec_path: str
) -> Iterator[tuple[int, int, int, SourceRow]]:
    try:
        yield from rows
    except (OSError, UnicodeDecodeError, pyarrow.ArrowException) as error:
        raise DataError(f"{spec_path}: {path} cannot be read: {error}") from error
