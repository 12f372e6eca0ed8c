"""Parent-death signal: the kernel kills a process when its parent ends, even by kill -9."""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36
# Loaded once, before any fork.
_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def die_with_parent(parent: int, number: int = signal.SIGKILL) -> None:
    """Have this process receive a signal when the thread of `parent` (a process id) that started it ends; see
    prctl(2).

    The setting survives exec. Outside Linux no such signal exists: only an orderly exit cleans up.
    """
    if _LIBC is None:
        return
    if _LIBC.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    # The parent may have ended before the call took effect.
    if os.getppid() != parent:
        os.kill(os.getpid(), number)


def adopt_orphans() -> None:
    """Have orphaned descendants of this process re-parented to it; see prctl(2), PR_SET_CHILD_SUBREAPER.

    Outside Linux they go to the first process.
    """
    if _LIBC is not None and _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")


def set_process_name(name: str) -> None:
    """Set the process name that ps and top show; the kernel keeps 15 bytes of it."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_NAME, name.encode()[:15], 0, 0, 0)
