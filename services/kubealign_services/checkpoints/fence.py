"""Fence numbers: each run of a driver takes a number that is higher than all earlier ones."""

from pathlib import Path

from kubealign_services.checkpoints.durable_files import create_file, fsync_path


def acquire_fence(run_dir: Path) -> int:
    """Acquire the next fence number, from 1. Two drivers that ask at the same time get different numbers.

    Each number is an empty file, created exclusively and never deleted. Nothing can be torn, and a listing
    that races with another driver can only be too low, which the exclusive creation corrects.

    Raises:
        OSError: The folder cannot be written.
    """
    folder = run_dir / "fences"
    folder.mkdir(parents=True, exist_ok=True)
    number = max((int(path.name) for path in folder.iterdir() if path.name.isdecimal()), default=0) + 1
    while True:
        try:
            create_file(folder / str(number), b"")
        except FileExistsError:
            number += 1
            continue
        fsync_path(folder)
        fsync_path(run_dir)
        return number
