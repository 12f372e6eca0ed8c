"""A process with lowered CPU priority."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kubealign_services.runtime.process.cpu_priority import NICE

PROGRAM = """
import asyncio, os, threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from kubealign_services.runtime.process.cpu_priority import lower_priority, lower_session_priority

os.nice({before})
lower_priority()
asyncio.run(lower_session_priority())
with ThreadPoolExecutor(1) as later:
    nice = later.submit(lambda: os.getpriority(os.PRIO_PROCESS, threading.get_native_id())).result()
session = Path("/proc/self/autogroup")
print(nice, session.read_text().split()[-1] if session.exists() else "none")
"""


@pytest.mark.parametrize("before", [0, 15])
def test_low_priority_threads_yield_the_cpu(before: int) -> None:
    """Check that an even lower priority is kept."""
    if os.nice(0) + before > 19:
        pytest.skip("this test process stands back itself")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(before=before)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        start_new_session=True,
    )
    nice, session = done.stdout.split()
    assert int(nice) == max(NICE, os.nice(0) + before)
    assert session == (str(NICE) if Path("/proc/self/autogroup").exists() else "none")
