"""Files of a source: paths, globs, downloads from object storage, and the result of another job."""

import glob
from collections.abc import Iterator, Mapping
from pathlib import Path

from kubealign.spec.sections.data import RESULT_ROWS_FILE, DataSource
from kubealign_services.data.errors import DataError
from kubealign_services.data.sources.volumes import mounted_path

#: File suffix -> format of the rows.
FORMATS = {".jsonl": "JSON", ".ndjson": "JSON", ".json": "JSON", ".parquet": "Parquet"}


def source_files(source: DataSource, spec_path: str, results: Mapping[str, Path]) -> dict[Path, str]:
    """Return file -> path of the field that names it, in the order in which the files are read.

    The files of a list are read in its order, those of a glob sorted by name. All files have one format.

    Args:
        results: Name of another job -> folder of its result, and address -> folder of its download.

    Raises DataError when a file is missing or named twice, a glob matches no file, or the formats differ.
    """
    files: dict[Path, str] = {}
    for field, path in _named_paths(source, spec_path, results):
        for file in _matching_files(path, field):
            if file in files:
                raise DataError(f"{field}: {file} is read by {files[file]} too: remove one")
            files[file] = field
    _check_formats(files)
    return files


def file_format(path: Path) -> str | None:
    """Return the format of the rows by the file's suffix; None: not a format that can be read."""
    return FORMATS.get(path.suffix.lower())


def _named_paths(
    source: DataSource, spec_path: str, results: Mapping[str, Path]
) -> Iterator[tuple[str, Path]]:
    """Yield (path of the field in the spec, file or glob that it names)."""
    if source.job is not None:
        yield f"{spec_path}.job.name", _job_result_rows(source.job.name, f"{spec_path}.job.name", results)
    elif source.uri is not None:
        for file in sorted(file for file in results[source.uri].rglob("*") if file.is_file()):
            yield f"{spec_path}.uri", file
    elif source.volume is not None:
        spec_path = f"{spec_path}.volume"
        for field, path in _path_fields(source.volume.path, source.volume.paths, spec_path):
            yield field, mounted_path(source.volume.claim_name, path, spec_path)
    else:
        for field, path in _path_fields(source.path, source.paths, spec_path):
            yield field, Path(path)


def _path_fields(path: str | None, paths: list[str] | None, spec_path: str) -> Iterator[tuple[str, str]]:
    if path is not None:
        yield f"{spec_path}.path", path
    for index, item in enumerate(paths or ()):
        yield f"{spec_path}.paths[{index}]", item


def _matching_files(path: Path, field: str) -> list[Path]:
    if path.is_dir():
        raise DataError(
            f"{field}: {path} is a folder: name a file in it, a glob such as {path}/*.jsonl, "
            f"or use huggingFace: {{name: {path}}}"
        )
    if path.exists():
        return [path]
    # Folders that exist are no patterns, even with brackets in their names.
    folder = next(parent for parent in path.parents if parent.is_dir())
    pattern = str(path.relative_to(folder))
    if not glob.has_magic(pattern):
        raise DataError(f"{field}: there is no file {path}")
    # Not Path.glob, whose * matches hidden files, such as those of an unfinished download.
    names = sorted(glob.glob(pattern, root_dir=folder, recursive=True))  # noqa: PTH207
    files = [folder / name for name in names if (folder / name).is_file()]
    if not files:
        raise DataError(f"{field}: no file matches {pattern} in {folder.absolute()}")
    return files


def _check_formats(files: Mapping[Path, str]) -> None:
    first = next(iter(files))
    for file, field in files.items():
        if file_format(file) is None:
            raise DataError(
                f"{field}: {file} ends in {file.suffix.lower() or 'nothing'}; "
                f"rows are read from {', '.join(FORMATS)} files"
            )
        if file_format(file) != file_format(first):
            raise DataError(f"{field}: {file} and {first} have different formats: name files of one format")


def _job_result_rows(name: str, spec_path: str, results: Mapping[str, Path]) -> Path:
    if name not in results:
        available = ", ".join(sorted(results)) or "none"
        raise DataError(f"{spec_path}: there is no result of a job {name}; known are: {available}")
    path = results[name] / RESULT_ROWS_FILE
    if not path.is_file():
        raise DataError(
            f"{spec_path}: the result of {name} has no rows: there is no {path}; "
            "it must be a job that makes data"
        )
    return path
