"""Draft folders, which are filled and then renamed, so that a folder is complete or absent."""

import secrets
import shutil
from pathlib import Path


def make_draft(parent: Path, prefix: str) -> Path:
    """Create an empty folder in `parent`, after those of this prefix, of interrupted work, are deleted."""
    for path in parent.glob(f"{prefix}*"):
        shutil.rmtree(path)
    draft = parent / f"{prefix}{secrets.token_hex(4)}"
    draft.mkdir(parents=True)
    return draft
