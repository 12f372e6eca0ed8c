"""Errors in a job's file, with location and remedy."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from pydantic import BaseModel

_MAX_VALUE_CHARACTERS = 60


@dataclass(frozen=True)
class SpecError:
    """One error in a job's file."""

    #: Description of the error and, if known, the remedy.
    message: str
    #: Path in the document, such as spec.algorithm.ppo.clip.low; empty: the document or file as a whole.
    path: str = ""
    #: The invalid value, shortened; empty: no value.
    value: str = ""
    #: None: the command line, or a text without a file.
    file: Path | None = None
    #: Index among the documents of the file, from 0.
    document: int | None = None
    #: The document's metadata.name.
    job: str | None = None
    #: Line number, from 1.
    line: int | None = None
    #: Origin of the value other than the file: `--set spec.seed=x`.
    origin: str = ""

    def __str__(self) -> str:
        text = "" if self.file is None else f"{self.file}: "
        if self.line is not None:
            text = f"{self.file}:{self.line}: " if self.file is not None else f"line {self.line}: "
        if self.job:
            text += f"{self.job}: "
        if self.path:
            text += f"{self.path}: "
        text += self.message
        notes = [f"it holds {self.value}"] if self.value else []
        notes += [f"from {self.origin}"] if self.origin else []
        return text + (f" ({', '.join(notes)})" if notes else "")


class SpecErrors(ValueError):
    """All errors in one or more files, one line each."""

    def __init__(self, errors: Iterable[SpecError]) -> None:
        self.errors = list(errors)
        super().__init__("\n".join(str(error) for error in self.errors))


def format_value(value: Any) -> str:
    """Format a value briefly: scalars as JSON, objects by their fields, lists by their length."""
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json", by_alias=True, exclude_unset=True)
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, dict):
        return f"an object with {_truncate(', '.join(map(str, value)))}" if value else "an empty object"
    if isinstance(value, list | tuple):
        return f"a list of {len(value)}" if value else "an empty list"
    return _truncate(json.dumps(value, ensure_ascii=False, default=str))


def _truncate(text: str) -> str:
    return text if len(text) <= _MAX_VALUE_CHARACTERS else text[: _MAX_VALUE_CHARACTERS - 3] + "..."
