import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kubealign import AlignmentClient
from kubealign.local.run_dir.layout import RunDirectory


@pytest.fixture
def client(tmp_path: Path) -> Iterator[AlignmentClient]:
    """Yield a client of this machine with runs in the test's folder. Terminate runners that a failed test has
    left."""
    runs = tmp_path / "runs"
    with AlignmentClient.local(runs) as client:
        yield client
    for folder in runs.glob("[!.]*/"):
        _end(RunDirectory(folder))


def _end(folder: RunDirectory) -> None:
    """Kill the runner; its processes exit with it."""
    deadline = time.monotonic() + 30
    while (holder := folder.lock().read_holder()) is not None and time.monotonic() < deadline:
        if holder.pid:
            os.kill(holder.pid, signal.SIGKILL)
        time.sleep(0.1)
