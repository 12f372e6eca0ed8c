"""One runner at a time for each run's folder."""

import fcntl
import os
import time
from dataclasses import dataclass
from pathlib import Path

from kubealign.local.failure import RunRefused

_ATTEMPTS = 20
_PAUSE_SECONDS = 0.01
_ALONE = "alone"
_LONGEST = 64


@dataclass(frozen=True)
class Holder:
    """The runner that holds a lock. `pid` 0: it has only begun, and has not said who it is."""

    pid: int
    #: It runs this job and no other.
    alone: bool = False


class RunLock:
    """Held by one runner at a time; the kernel lets go of it when the runner ends, however it ends."""

    def __init__(self, path: Path, folder: Path) -> None:
        self._path = path
        self._folder = folder
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """For this process. Raises RunRefused, naming the process that has it."""
        self.reserve()
        self.name(os.getpid())

    def reserve(self) -> None:
        """For a process that is to be started with the lock's descriptor, and named afterwards. Raises
        RunRefused."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        for attempt in range(_ATTEMPTS):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                # Whoever only asks who holds it has it for an instant.
                if attempt < _ATTEMPTS - 1:
                    time.sleep(_PAUSE_SECONDS)
        else:
            pid = _holder(descriptor).pid
            os.close(descriptor)
            raise RunRefused(
                f"{self._folder} is in use by another kubealign run (process {pid or 'unknown'}): "
                "wait for it, stop it, or choose another --runs-dir"
            )
        os.ftruncate(descriptor, 0)
        self._descriptor = descriptor

    @property
    def descriptor(self) -> int:
        """Of the lock that is held."""
        assert self._descriptor is not None
        return self._descriptor

    def name(self, pid: int, *, alone: bool = False) -> None:
        """Say which process has it."""
        os.pwrite(self.descriptor, f"{pid}{f' {_ALONE}' if alone else ''}\n".encode(), 0)

    def hand_over(self) -> None:
        """Leave it to the process that was started with its descriptor."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def adopt(self, descriptor: int) -> None:
        """Take over what the process that started this one has reserved for it alone."""
        # What this process starts must not keep it.
        os.set_inheritable(descriptor, False)
        self._descriptor = descriptor
        self.name(os.getpid(), alone=True)

    def release(self) -> None:
        if self._descriptor is not None:
            os.ftruncate(self._descriptor, 0)
            os.close(self._descriptor)
            self._descriptor = None

    def holder(self) -> Holder | None:
        """Who has it, of all processes; None: nobody."""
        try:
            descriptor = os.open(self._path, os.O_RDONLY)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return _holder(descriptor)
        else:
            # Not by closing alone: a process that is forked at this moment has the descriptor too.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
            return None
        finally:
            os.close(descriptor)


def _holder(descriptor: int) -> Holder:
    words = os.pread(descriptor, _LONGEST, 0).decode(errors="replace").split()
    if not words or not words[0].isdecimal():
        return Holder(0)
    return Holder(int(words[0]), alone=_ALONE in words[1:])
