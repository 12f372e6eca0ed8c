"""Names of files within a folder, as manifests list them."""

from pathlib import PurePosixPath
from typing import Annotated, TypeAlias

from pydantic import AfterValidator


def _check_relative(name: str) -> str:
    path = PurePosixPath(name)
    if not name or path.is_absolute() or ".." in path.parts:
        raise ValueError("must be a path inside the folder")
    return name


#: Path within a folder, with slashes.
RelativeName: TypeAlias = Annotated[str, AfterValidator(_check_relative)]
