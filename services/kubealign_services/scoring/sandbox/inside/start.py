"""Start of a process in a sandbox: its resource limits, which the kernel keeps for its children too."""

import builtins
import os
import resource
import sys
from typing import Any

#: Processes of a sandbox besides the program: its init.
_OWN_PROCESSES = 1


def set_limits(limits: dict[str, Any]) -> None:
    """Set the limits for good: soft and hard ones are equal.

    Args:
        limits: cpuSeconds, memoryBytes, fileBytes, processes, openFiles.
    """
    for kind, value in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_CPU, limits["cpuSeconds"]),
        (resource.RLIMIT_AS, limits["memoryBytes"]),
        (resource.RLIMIT_FSIZE, limits["fileBytes"]),
        (resource.RLIMIT_NPROC, limits["processes"] + _OWN_PROCESSES),
        (resource.RLIMIT_NOFILE, limits["openFiles"]),
        (resource.RLIMIT_MSGQUEUE, 0),
        (resource.RLIMIT_MEMLOCK, 0),
    ):
        resource.setrlimit(kind, (value, value))


def define_exits() -> None:
    """Define exit and quit, which the module site does elsewhere: many programs end by them."""
    for name in ("exit", "quit"):
        setattr(builtins, name, sys.exit)


def announce_readiness(descriptor: int) -> None:
    """Tell the worker that the interpreter has started: the time of the test begins."""
    os.write(descriptor, b"r")
    os.close(descriptor)
