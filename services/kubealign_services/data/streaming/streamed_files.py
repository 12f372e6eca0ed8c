"""Files of streamed rows, as they were when the job was prepared: a changed file would change the order."""

import json
import os
from collections.abc import Mapping
from pathlib import Path

import pyarrow
import pyarrow.parquet
import xxhash
from pydantic import BaseModel, ConfigDict, ValidationError

from kubealign_services.data.errors import DataError
from kubealign_services.data.sources.file_rows import is_json_list
from kubealign_services.data.sources.source_files import file_format

_NAME = "stream.json"
# Bytes at either end of a file that its digest covers.
_END_BYTES = 1 << 12


class StreamedFile(BaseModel):
    """One file. field: field of the spec that names it. digest: of its first and its last bytes, xxh3-128 in
    hexadecimal.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: Path
    field: str
    size_bytes: int
    digest: str

    @classmethod
    def of_file(cls, path: Path, field: str) -> "StreamedFile":
        """Describe a file. Raises DataError if it cannot be read."""
        digest = xxhash.xxh3_128()
        try:
            with path.open("rb") as file:
                digest.update(file.read(_END_BYTES))
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - _END_BYTES))
                digest.update(file.read(_END_BYTES))
        except OSError as error:
            raise DataError(f"{field}: {path} cannot be read: {error}") from error
        return cls(path=path, field=field, size_bytes=size, digest=digest.hexdigest())


class StreamedFiles(BaseModel):
    """Files of a source, in the order of reading."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    files: list[StreamedFile]

    @classmethod
    def of_source(cls, files: Mapping[Path, str]) -> "StreamedFiles":
        """Describe the files of a source.

        Args:
            files: File -> field of the spec that names it.

        Raises DataError for a file that cannot be streamed.
        """
        for path, field in files.items():
            _check_format(path, field)
        return cls(files=[StreamedFile.of_file(path.absolute(), field) for path, field in files.items()])

    def write(self, folder: Path) -> None:
        """Write the description to a folder."""
        (folder / _NAME).write_text(json.dumps(self.model_dump(mode="json"), indent=2) + "\n")

    @classmethod
    def read(cls, folder: Path) -> dict[Path, str]:
        """Return file -> field of the spec of the files described in a folder.

        Raises DataError for a file that is missing or has changed.
        """
        path = folder / _NAME
        try:
            recorded = cls.model_validate_json(path.read_text())
        except (OSError, ValidationError) as error:
            raise DataError(f"{path} cannot be read: {error}; start the job afresh") from error
        for file in recorded.files:
            if StreamedFile.of_file(file.path, file.field) != file:
                raise DataError(
                    f"{file.field}: {file.path} has changed since the job was prepared, and streamed rows "
                    "are read from it: put it back, or start the job afresh"
                )
        return {file.path: file.field for file in recorded.files}


def _check_format(path: Path, field: str) -> None:
    try:
        if file_format(path) != "JSON":
            pyarrow.parquet.read_metadata(path)
        elif is_json_list(path):
            raise DataError(
                f"{field}: {path} holds one JSON list, which cannot be streamed: write one object on each "
                "line, or remove streaming"
            )
    except (OSError, UnicodeDecodeError, pyarrow.ArrowException) as error:
        raise DataError(f"{field}: {path} cannot be read: {error}") from error
