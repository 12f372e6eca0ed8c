"""Detection of a full disk, on which neither logs nor status can be written."""

import asyncio
import shutil
from pathlib import Path

_FULL_BELOW_BYTES = 65_536
_POLL_SECONDS = 1.0
# A checkpoint that does not fit is removed again, and its own error is more specific.
_FULL_POLLS = 3


def is_full(folder: Path) -> bool:
    """Return whether the disk that holds the folder is practically full."""
    return shutil.disk_usage(folder).free < _FULL_BELOW_BYTES


async def wait_until_full(folder: Path) -> None:
    """Wait until the disk of the folder has been full for some seconds."""
    await _wait_for(folder, full=True)


async def wait_until_room(folder: Path) -> None:
    """Wait until the disk of the folder has had room for some seconds."""
    await _wait_for(folder, full=False)


def disk_full_message(folder: Path) -> str:
    """Return the message for a full disk."""
    return (
        f"no space left on the disk of {folder}: the job waits until there is room; "
        "its checkpoints are intact"
    )


async def _wait_for(folder: Path, *, full: bool) -> None:
    polls = 0
    while polls < _FULL_POLLS:
        # The file system sends no events about its free space.
        await asyncio.sleep(_POLL_SECONDS)
        polls = polls + 1 if is_full(folder) is full else 0
