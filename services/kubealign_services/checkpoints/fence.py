"""The fence: a number that each run of a driver takes, higher than all before it."""

from pathlib import Path

from kubealign_services.checkpoints.durable import sync, write_new


def next_fence(run_dir: Path) -> int:
    """Take the next number, from 1. Two drivers that ask at the same moment get different ones.

    Each number is an empty file of its own, made exclusively and never deleted: nothing can tear, and a
    listing that races with another driver can only be too low, which the exclusive creation mends.
    Raises OSError when the folder cannot be written.
    """
    folder = run_dir / "fences"
    folder.mkdir(parents=True, exist_ok=True)
    number = max((int(path.name) for path in folder.iterdir() if path.name.isdecimal()), default=0) + 1
    while True:
        try:
            write_new(folder / str(number), b"")
        except FileExistsError:
            number += 1
            continue
        sync(folder)
        sync(run_dir)
        return number
