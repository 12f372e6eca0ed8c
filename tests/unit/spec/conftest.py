"""Small whole jobs to break, and files to write them to."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.bad_specs import whole_job


@pytest.fixture
def document() -> Callable[..., dict[str, Any]]:
    """document(algorithm, {dotted place: value}): a whole job, so changed; `...` removes what is there."""

    return whole_job


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """write(documents or text, ...): the path of a job file in a fresh folder."""

    def save(*documents: Any, name: str = "jobs.yaml") -> Path:
        path = tmp_path / name
        texts = [
            item if isinstance(item, str) else yaml.safe_dump(item, sort_keys=False) for item in documents
        ]
        path.write_text("---\n".join(texts))
        return path

    return save
