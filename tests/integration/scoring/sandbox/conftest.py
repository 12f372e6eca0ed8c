"""Sandboxes of the tests, none of which may leave a process or a control group."""

import contextlib
import ctypes
import os
from collections.abc import Iterator

import psutil
import pytest

from kubealign_services.scoring.sandbox.bubblewrap import Bubblewrap
from support.sandboxes import Sandbox, control_groups

_PR_SET_CHILD_SUBREAPER = 36


@pytest.fixture(scope="session")
def bubblewrap() -> Bubblewrap:
    return Bubblewrap()


@pytest.fixture(autouse=True)
def nothing_stays() -> Iterator[None]:
    """Orphans come to this process, where they can be seen: after a test there is none."""
    libc = ctypes.CDLL(None)
    before = set(psutil.Process().children(recursive=True))
    assert libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    yield
    assert libc.prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0) == 0
    processes = [
        process for process in set(psutil.Process().children(recursive=True)) - before if not _reap(process)
    ]
    assert not processes
    assert not control_groups(os.getpid())


def _reap(process: psutil.Process) -> bool:
    """Return whether the process has ended."""
    with contextlib.suppress(psutil.NoSuchProcess, ChildProcessError):
        if process.status() != psutil.STATUS_ZOMBIE:
            return False
        os.waitpid(process.pid, os.WNOHANG)
    return True


@pytest.fixture
def sandbox(bubblewrap: Bubblewrap) -> Sandbox:
    return Sandbox(bubblewrap)
