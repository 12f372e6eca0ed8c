"""Row sources: JSON Lines, JSON, Parquet, and datasets of the hub or a folder through `datasets`."""

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any

from kubealign.spec.sections.data import SOURCE_COLUMN, DataSource, HuggingFaceDataset
from kubealign_services.data.errors import DataError, RowError
from kubealign_services.data.sources.file_rows import START, RowPosition, SourceRow, read_rows
from kubealign_services.data.sources.source_files import source_files

_NO_RESULTS: Mapping[str, Path] = MappingProxyType({})


@dataclass(frozen=True)
class RowDataset:
    """Rows that can be iterated repeatedly.

    `name`: for errors; `columns`: those of the first row; `files`: file -> field that names it; `entry`:
    name of the entry of a mixture, empty without a mixture.
    """

    name: str
    columns: tuple[str, ...]
    _read: Callable[[RowPosition], Iterable[tuple[RowPosition, SourceRow]]]
    _limit: int | None
    files: Mapping[Path, str] = field(default_factory=dict)
    entry: str = ""

    def __iter__(self) -> Iterator[SourceRow]:
        return (row for _, row in self.rows_from(START))

    def rows_from(self, start: RowPosition) -> Iterator[tuple[RowPosition, SourceRow]]:
        """Yield the rows from the position of a row on, each with its own position."""
        if self._limit is not None and start.row >= self._limit:
            return
        for position, row in self._read(start):
            yield position, row
            # Before the next row is read: it may be one that cannot be used.
            if position.row + 1 == self._limit:
                return

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

        def read(start: RowPosition) -> Iterator[tuple[RowPosition, SourceRow]]:
            return ((position, transform(row)) for position, row in self._read(start))

        return replace(self, _read=read)

    @contextmanager
    def located_errors(self) -> Iterator[None]:
        """Add the file to the RowErrors of the block; where there are several files, the row in it too."""
        try:
            yield
        except RowError as error:
            position = self._find(error.row) if len(self.files) > 1 else START
            raise self.locate(error, position) from error

    def locate(self, error: RowError, position: RowPosition) -> DataError:
        """Return the error of a row with its file.

        Args:
            position: Position of the row; any where there is one file.
        """
        where = f"row {error.row + 1}"
        if len(self.files) > 1:
            where += f" (row {position.row_in_file + 1} of {list(self.files)[position.file]})"
        else:
            where = f"{self.name}: {where}"
        return DataError(f"{where}{error.problem}")

    def _find(self, number: int) -> RowPosition:
        """Return the position of a row."""
        return next(position for position, _ in read_rows(self.files) if position.row == number)


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
    if source.hugging_face is None:
        return open_files(source_files(source, spec_path, results), spec_path, limit)
    read = _hugging_face(source.hugging_face, spec_path, cache)
    return _open_rows(source.hugging_face.name, read, limit, {}, spec_path)


def open_files(files: Mapping[Path, str], spec_path: str, limit: int | None = None) -> RowDataset:
    """Open the rows of files, at most `limit`.

    Args:
        files: File -> field that names it.
        spec_path: Path of the source in the spec, for errors.

    Raises DataError when a file is unreadable or there is no row.
    """
    return _open_rows(_files_name(list(files)), partial(read_rows, files), limit, files, spec_path)


def _open_rows(
    name: str,
    read: Callable[[RowPosition], Iterable[tuple[RowPosition, SourceRow]]],
    limit: int | None,
    files: Mapping[Path, str],
    spec_path: str,
) -> RowDataset:
    first = next(iter(read(START)), None)
    if first is None:
        raise DataError(f"{spec_path}: {name} has no rows")
    return RowDataset(name, tuple(first[1]), read, limit, files)


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


def _files_name(files: Sequence[Path]) -> str:
    return str(files[0]) if len(files) == 1 else f"{files[0]} to {files[-1]} ({len(files)} files)"


def _hugging_face(
    spec: HuggingFaceDataset, spec_path: str, cache: Path
) -> Callable[[RowPosition], Iterable[tuple[RowPosition, SourceRow]]]:
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

    def read(start: RowPosition) -> Iterator[tuple[RowPosition, SourceRow]]:
        rows = islice(enumerate(loaded), start.row, None)
        return ((RowPosition(row=number), row) for number, row in rows)

    return read
