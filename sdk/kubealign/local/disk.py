"""Detection of a full disk, on which neither logs nor status can be written."""

import asyncio
import shutil
from pathlib import Path

_NO_ROOM_BYTES = 65_536
_LOOK_SECONDS = 1.0
# A checkpoint that does not fit is removed again, and its own error is more specific.
_LOOKS = 3


def has_no_room(folder: Path) -> bool:
    """Return whether the disk that holds the folder is practically full."""
    return shutil.disk_usage(folder).free < _NO_ROOM_BYTES


async def filled_up(folder: Path) -> None:
    """Wait until the disk of the folder has been full for some seconds."""
    full_polls = 0
    while full_polls < _LOOKS:
        await asyncio.sleep(_LOOK_SECONDS)
        full_polls = full_polls + 1 if has_no_room(folder) else 0


def no_room_message(folder: Path) -> str:
    """Return the error message for a full disk."""
    return (
        f"no space left on the disk of {folder}; checkpoints are intact; free some space and run the "
        "same command to resume"
    )
