"""Paths within a document (spec.rewards[0].name), and paths of files that a document names."""

import os.path
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

#: Keys and indices from the root of a document to a value.
DocumentPath: TypeAlias = tuple[str | int, ...]


def format_path(path: Sequence[str | int]) -> str:
    """Format ("spec", "rewards", 0, "name") as spec.rewards[0].name."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else (f".{part}" if text else part)
    return text


def resolve_path(value: str, folder: Path) -> str:
    """Return the absolute path of a file named by a document in `folder`; ~ is the user's home."""
    return os.path.normpath(folder.absolute() / Path(value).expanduser())
