"""Fence numbers: each attempt of a driver takes a number that is higher than all earlier ones.

The newest number owns the run directory. Before it writes anything that a successor reads, a driver checks
that its number is still the newest.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kubealign_services.checkpoints.durable_files import create_file, fsync_path

#: Folder of the fence numbers in the run directory.
FENCES_FOLDER = "fences"


class StaleFence(RuntimeError):
    """The caller's fence is older than one seen already: another driver has taken over."""


@dataclass(frozen=True)
class Fence:
    """A driver's number in a run directory."""

    run_dir: Path
    number: int

    def check(self) -> None:
        """Raise StaleFence if the run directory has a higher number. Raises OSError."""
        newest = latest_fence(self.run_dir)
        if newest > self.number:
            raise StaleFence(
                f"fence {self.number} has been replaced by {newest}: another driver writes {self.run_dir}"
            )

    @contextmanager
    def explain(self, *errors: type[Exception]) -> Iterator[None]:
        """Raise StaleFence instead of these errors if another driver has taken over.

        A successor may be the cause of an error: it deletes the unfinished checkpoint of the driver that it
        replaces, and rollout workers that know the higher fence refuse the lower one's weights.
        """
        try:
            yield
        except errors:
            self.check()
            raise


def acquire_fence(run_dir: Path, after: int | None = None) -> int:
    """Acquire the next fence number, from 1. Two drivers that ask at the same time get different numbers.

    Each number is an empty file, created exclusively and never deleted. Nothing can be torn, and a listing
    that races with another driver can only be too low, which the exclusive creation corrects.

    Args:
        after: The caller's previous number, which must still be the newest; None: this is its first.

    Raises:
        StaleFence: Another driver has taken a number after `after`.
        OSError: The folder cannot be written.
    """
    folder = run_dir / FENCES_FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    number = (latest_fence(run_dir) if after is None else after) + 1
    while True:
        try:
            create_file(folder / str(number), b"")
        except FileExistsError:
            if after is not None:
                Fence(run_dir, after).check()
            number += 1
            continue
        fsync_path(folder)
        fsync_path(run_dir)
        return number


def latest_fence(run_dir: Path) -> int:
    """Return the newest fence number of a run directory; 0 before the first."""
    try:
        names = [path.name for path in (run_dir / FENCES_FOLDER).iterdir()]
    except FileNotFoundError:
        return 0
    return max((int(name) for name in names if name.isdecimal()), default=0)
