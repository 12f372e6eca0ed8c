"""Simulates a container's init process: orphans are re-parented to it.

python reaped.py SCENARIO
"""

import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from kubealign_services.runtime.process.reaper import run_with_reaper

_PR_SET_CHILD_SUBREAPER = 36
_ORPHAN = "import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', '']).pid)"


def fails() -> int:
    return 78


def is_killed() -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return 0


def waits() -> int:
    print("waiting", flush=True)
    signal.pause()
    return 0


def handles_the_signal() -> int:
    signal.signal(signal.SIGTERM, lambda number, frame: os._exit(7))
    print("waiting", flush=True)
    signal.pause()
    return 0


def leaves_an_orphan() -> int:
    """Leave an orphan that ends later; return 0 when it is reaped."""
    parent = os.getppid()
    orphan = int(subprocess.run([sys.executable, "-c", _ORPHAN], capture_output=True, check=True).stdout)
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            state, adopted = Path(f"/proc/{orphan}/stat").read_text().rpartition(")")[2].split()[:2]
        except FileNotFoundError:
            return 0
        if int(adopted) not in (parent, os.getpid()):
            print(f"the orphan is {adopted}'s, in state {state}", flush=True)
        time.sleep(0.05)
    return 1


SCENARIOS = {
    scenario.__name__: scenario
    for scenario in (fails, is_killed, waits, handles_the_signal, leaves_an_orphan)
}

if __name__ == "__main__":
    if ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError("orphans cannot be adopted here")
    sys.exit(run_with_reaper(SCENARIOS[sys.argv[1]]))
