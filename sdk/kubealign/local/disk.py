"""A disk that has filled up: nothing goes on then, no log and no message, and nobody can even say so."""

import asyncio
import shutil
from pathlib import Path

_NO_ROOM_BYTES = 65_536
_LOOK_SECONDS = 1.0
# A commit that does not fit is removed again, and its own error says more.
_LOOKS = 3


def has_no_room(folder: Path) -> bool:
    """Whether the disk that holds the folder is as good as full."""
    return shutil.disk_usage(folder).free < _NO_ROOM_BYTES


async def filled_up(folder: Path) -> None:
    """Return once the disk of the folder has been full for some seconds."""
    looks = 0
    while looks < _LOOKS:
        await asyncio.sleep(_LOOK_SECONDS)
        looks = looks + 1 if has_no_room(folder) else 0


def no_room_message(folder: Path) -> str:
    return (
        f"no space left on the disk of {folder}; what was committed is intact, and once there is room the "
        "same command goes on from there"
    )
