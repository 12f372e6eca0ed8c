"""Row sources: JSON Lines, JSON, Parquet, and datasets of the hub or a folder through `datasets`.

Files are read directly, without a cache and without network access. (The JSON reader of `datasets` would
turn text that looks like a date into one, and reject large integers; a reward must get exactly the file's
content.)
"""

import difflib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

import pyarrow
import pyarrow.parquet

from kubealign.spec.sections.data import SOURCE_COLUMN, DataSource, HuggingFaceDataset
from kubealign_services.data.errors import DataError, RowError
from kubealign_services.data.sources.source_files import file_format, source_files

#: One row: column -> any JSON value (or Parquet value).
SourceRow: TypeAlias = Mapping[str, Any]

_NO_RESULTS: Mapping[str, Path] = MappingProxyType({})
# With or without a byte-order mark.
_ENCODING = "utf-8-sig"


@dataclass(frozen=True)
class RowDataset:
    """Rows that can be iterated repeatedly.

    `name`: for errors; `columns`: those of the first row; `_files`: file -> field that names it; `entry`:
    name of the entry of a mixture, empty without a mixture.
    """

    name: str
    columns: tuple[str, ...]
    _read: Callable[[], Iterable[SourceRow]]
    _limit: int | None
    _files: Mapping[Path, str] = field(default_factory=dict)
    entry: str = ""

    def __iter__(self) -> Iterator[SourceRow]:
        return islice(iter(self._read()), self._limit)

    def with_columns(self, values: Mapping[str, Any]) -> "RowDataset":
        """Return the same rows, each with these values in the columns of these names."""
        if not values:
            return self

        rows = self.map(lambda row: {**row, **values})
        return replace(rows, columns=tuple(dict.fromkeys((*self.columns, *values))))

    def as_entry(self, name: str) -> "RowDataset":
        """Return the rows as an entry of a mixture, with its name in the column `source`."""
        return replace(self.with_columns({SOURCE_COLUMN: name}), entry=name)

    def map(self, transform: Callable[[SourceRow], SourceRow]) -> "RowDataset":
        """Return the rows as the transform returns them, with the same columns."""

        def read() -> Iterator[SourceRow]:
            return (transform(row) for row in self._read())

        return replace(self, _read=read)

    @contextmanager
    def located_errors(self) -> Iterator[None]:
        """Add the file to the RowErrors of the block; where there are several files, the row in it too."""
        try:
            yield
        except RowError as error:
            where = f"row {error.row + 1}{self._location(error.row)}"
            if len(self._files) <= 1:
                where = f"{self.name}: {where}"
            raise DataError(f"{where}{error.problem}") from error

    def _location(self, number: int) -> str:
        first = 0
        for path, spec_path in self._files.items() if len(self._files) > 1 else ():
            rows = sum(1 for _ in _read_files({path: spec_path}))
            if number < first + rows:
                return f" (row {number - first + 1} of {path})"
            first += rows
        return ""


def open_source(
    source: DataSource,
    spec_path: str,
    cache: Path,
    limit: int | None = None,
    results: Mapping[str, Path] = _NO_RESULTS,
) -> RowDataset:
    """Open the rows of a source, at most `limit`.

    Args:
        spec_path: Path of the source in the spec, for errors.
        cache: Folder that `datasets` may write to.
        results: Name of another job -> folder of its result.

    Raises DataError when the source is missing, unreadable or empty.
    """
    if source.hugging_face is not None:
        files: dict[Path, str] = {}
        name, read = source.hugging_face.name, _hugging_face(source.hugging_face, spec_path, cache)
    else:
        files = source_files(source, spec_path, results)
        name, read = _files_name(list(files)), partial(_read_files, files)
    first = next(iter(read()), None)
    if first is None:
        raise DataError(f"{spec_path}: {name} has no rows")
    return RowDataset(name, tuple(first), read, limit, files)


def require_columns(source: RowDataset, columns: Mapping[str, str]) -> None:
    """Raise DataError unless the rows have these columns.

    Args:
        columns: Field of the spec -> the column that it names.
    """
    for spec_path, column in columns.items():
        if column not in source.columns:
            near = difflib.get_close_matches(column, source.columns, n=1, cutoff=0.5)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise DataError(
                f"{spec_path}: {source.name} has no column {column!r}; "
                f"it has {', '.join(map(repr, source.columns))}{hint}"
            )


def _read_files(files: Mapping[Path, str]) -> Iterator[SourceRow]:
    for path, spec_path in files.items():
        read = _json_rows if file_format(path) == "JSON" else _parquet_rows
        yield from _wrap_read_errors(read(path), path, spec_path)


def _files_name(files: Sequence[Path]) -> str:
    return str(files[0]) if len(files) == 1 else f"{files[0]} to {files[-1]} ({len(files)} files)"


def _wrap_read_errors(rows: Iterator[SourceRow], path: Path, spec_path: str) -> Iterator[SourceRow]:
    try:
        yield from rows
    except (OSError, UnicodeDecodeError, pyarrow.ArrowException) as error:
        raise DataError(f"{spec_path}: {path} cannot be read: {error}") from error


def _json_rows(path: Path) -> Iterator[SourceRow]:
    if _is_list(path):
        for number, row in enumerate(_parse_json(path, 1, path.read_text(_ENCODING)), start=1):
            yield _require_object(row, f"{path}, row {number}")
        return
    with path.open(encoding=_ENCODING) as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                yield _require_object(
                    _parse_json(path, number, line.rstrip("\r\n")), f"{path}, line {number}"
                )


def _is_list(path: Path) -> bool:
    with path.open(encoding=_ENCODING) as file:
        return next((line for line in file if line.strip()), "").lstrip().startswith("[")


def _parse_json(path: Path, number: int, text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        line = number + error.lineno - 1
        raise DataError(f"{path}, line {line}, column {error.colno}: not JSON: {error.msg}") from error


def _require_object(row: Any, where: str) -> SourceRow:
    if not isinstance(row, dict):
        raise DataError(f"{where}: a row is an object, not {_json_type(row)}")
    return row


def _parquet_rows(path: Path) -> Iterator[SourceRow]:
    with pyarrow.parquet.ParquetFile(path) as file:
        for batch in file.iter_batches(1024):
            yield from batch.to_pylist()


def _hugging_face(spec: HuggingFaceDataset, spec_path: str, cache: Path) -> Callable[[], Iterable[SourceRow]]:
    # Imported late: two seconds that rows in files do not need.
    import datasets

    datasets.disable_progress_bars()
    try:
        loaded = datasets.load_dataset(
            spec.name, spec.config, split=spec.split, revision=spec.revision, cache_dir=str(cache)
        )
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        raise DataError(
            f"{spec_path}.huggingFace: the data set {spec.name} (split {spec.split}) cannot be loaded: "
            f"{type(error).__name__}: {error}"
        ) from error
    return lambda: loaded


def _json_type(value: Any) -> str:
    return {list: "a list", str: "text", type(None): "null"}.get(type(value), type(value).__name__)
