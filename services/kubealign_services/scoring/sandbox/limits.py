"""Limits of a program in a sandbox."""

import math
from dataclasses import dataclass
from typing import Any

#: Bytes of files that a program can write.
SCRATCH_BYTES = 64 * 2**20
#: Open files of each process.
_OPEN_FILES = 64
#: Seconds of computing that a process has beyond the seconds of the test, which the worker measures.
_MORE_CPU_SECONDS = 2


@dataclass(frozen=True)
class Limits:
    """Limits of one test.

    Args:
        seconds: Time from the start of the program on.
        memory_bytes: Memory of all processes where the worker can make control groups; address space of each
            process.
        output_bytes: Bytes that the program may print.
        processes: Processes and threads that may exist at once.
    """

    seconds: float
    memory_bytes: int
    output_bytes: int
    processes: int

    def for_process(self) -> dict[str, Any]:
        """Return the arguments of `inside.start.set_limits`."""
        return {
            "cpuSeconds": math.ceil(self.seconds) + _MORE_CPU_SECONDS,
            "memoryBytes": self.memory_bytes,
            "fileBytes": SCRATCH_BYTES,
            "processes": self.processes,
            "openFiles": _OPEN_FILES,
        }
