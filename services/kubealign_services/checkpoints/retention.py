"""Retention of checkpoints: the newest are kept; older ones and the remnants of crashes are deleted."""

import os
import secrets
import shutil
from collections.abc import Sequence
from pathlib import Path

#: Prefix of a folder that is being filled: not yet a checkpoint.
WRITING_PREFIX = ".writing-"
#: Prefix of a folder that is being deleted: no longer a checkpoint.
REMOVING_PREFIX = ".removing-"


def prune_checkpoints(checkpoints: Sequence[Path], keep: int) -> None:
    """Delete all but the newest checkpoints.

    Args:
        checkpoints: Folders of one parent, oldest first.
        keep: Number of checkpoints that stay, at least 1.

    Raises:
        OSError: A folder could not be renamed or deleted. The rest is deleted by the next call, or by
            `remove_leftovers`.
    """
    for old in checkpoints[:-keep]:
        # Rename first: a crash during the removal must not leave a folder that looks like a checkpoint.
        removing = old.with_name(f"{REMOVING_PREFIX}{old.name}-{secrets.token_hex(4)}")
        os.rename(old, removing)  # noqa: PTH104
    if checkpoints:
        remove_leftovers(checkpoints[-1].parent)


def remove_leftovers(directory: Path) -> None:
    """Delete the folders that an interrupted write or removal has left. Raises OSError."""
    for path in directory.iterdir():
        if path.name.startswith((WRITING_PREFIX, REMOVING_PREFIX)):
            shutil.rmtree(path)
