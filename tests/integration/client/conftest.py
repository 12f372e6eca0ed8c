import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kubealign import AlignmentClient
from kubealign.local.run_folder import RunFolder


@pytest.fixture
def client(tmp_path: Path) -> Iterator[AlignmentClient]:
    """Of this machine, with its runs in the test's folder. Whatever a failed test left running is ended."""
    runs = tmp_path / "runs"
    with AlignmentClient.local(runs) as client:
        yield client
    for folder in runs.glob("[!.]*/"):
        _end(RunFolder(folder))


def _end(folder: RunFolder) -> None:
    """The runner takes all that it has started with it."""
    deadline = time.monotonic() + 30
    while (holder := folder.lock().holder()) is not None and time.monotonic() < deadline:
        if holder.pid:
            os.kill(holder.pid, signal.SIGKILL)
        time.sleep(0.1)
