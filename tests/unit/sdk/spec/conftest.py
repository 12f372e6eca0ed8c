"""Fixtures of the spec tests: complete job documents and job files."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.bad_specs import whole_job


@pytest.fixture
def document() -> Callable[..., dict[str, Any]]:
    """Return document(algorithm, {dotted path: value}): a changed job; `...` removes a value."""
    return whole_job


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Return write(documents or text, ...), which writes a job file to a new folder and returns its path."""

    def save(*documents: Any, name: str = "jobs.yaml") -> Path:
        path = tmp_path / name
        texts = [
            item if isinstance(item, str) else yaml.safe_dump(item, sort_keys=False) for item in documents
        ]
        path.write_text("---\n".join(texts))
        return path

    return save
