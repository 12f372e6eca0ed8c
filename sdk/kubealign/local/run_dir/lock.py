"""File lock of a run directory: one runner at a time."""

import fcntl
import os
import time
from dataclasses import dataclass
from pathlib import Path

from kubealign.local.errors import RunRefused

_ATTEMPTS = 20
_PAUSE_SECONDS = 0.01
_ALONE = "alone"
_MAX_BYTES = 64


@dataclass(frozen=True)
class LockHolder:
    """The runner that holds a lock. `pid` 0: it has just started and has not recorded its id."""

    pid: int
    #: The runner runs this job and no other.
    runs_one_job: bool = False


class RunLock:
    """Lock held by one runner at a time; the kernel releases it when the runner ends, for whatever reason."""

    def __init__(self, path: Path, folder: Path) -> None:
        self._path = path
        self._folder = folder
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Acquire the lock for this process. Raises RunRefused with the id of the current holder."""
        self.reserve()
        self.write_holder(os.getpid())

    def reserve(self) -> None:
        """Acquire the lock for a process that is to be started with its descriptor and recorded afterwards.

        Raises RunRefused.
        """
        self._path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        for attempt in range(_ATTEMPTS):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                # `read_holder` of another process takes the lock for an instant.
                if attempt < _ATTEMPTS - 1:
                    time.sleep(_PAUSE_SECONDS)
        else:
            pid = _parse_holder(descriptor).pid
            os.close(descriptor)
            raise RunRefused(
                f"{self._folder} is in use by another kubealign run (process {pid or 'unknown'}): "
                "wait for it, stop it, or choose another --runs-dir"
            )
        os.ftruncate(descriptor, 0)
        self._descriptor = descriptor

    @property
    def descriptor(self) -> int:
        """File descriptor of the held lock."""
        assert self._descriptor is not None
        return self._descriptor

    def write_holder(self, pid: int, *, runs_one_job: bool = False) -> None:
        """Record the process that holds the lock."""
        os.pwrite(self.descriptor, f"{pid}{f' {_ALONE}' if runs_one_job else ''}\n".encode(), 0)

    def hand_over(self) -> None:
        """Leave the lock to the process that was started with its descriptor."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def adopt(self, descriptor: int) -> None:
        """Take over the lock that the parent process has reserved for this process alone."""
        # Child processes must not inherit the lock.
        os.set_inheritable(descriptor, False)
        self._descriptor = descriptor
        self.write_holder(os.getpid(), runs_one_job=True)

    def release(self) -> None:
        if self._descriptor is not None:
            os.ftruncate(self._descriptor, 0)
            os.close(self._descriptor)
            self._descriptor = None

    def read_holder(self) -> LockHolder | None:
        """Return the process that holds the lock; None if it is free."""
        try:
            descriptor = os.open(self._path, os.O_RDONLY)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return _parse_holder(descriptor)
        else:
            # Unlock explicitly: a process forked at this moment holds the descriptor too.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
            return None
        finally:
            os.close(descriptor)


def _parse_holder(descriptor: int) -> LockHolder:
    words = os.pread(descriptor, _MAX_BYTES, 0).decode(errors="replace").split()
    if not words or not words[0].isdecimal():
        return LockHolder(0)
    return LockHolder(int(words[0]), runs_one_job=_ALONE in words[1:])
