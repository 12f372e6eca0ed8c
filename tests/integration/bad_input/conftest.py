from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.running import RunningJobs, left_running
from support.tiny_jobs import write_jobs

#: Limit of the command's duration on a busy machine; most of it is the import of torch.
END_SECONDS = 120.0

Failed = Callable[..., str]


@pytest.fixture
def failed(tmp_path: Path) -> Failed:
    """Return a function that runs jobs with `kubealign run` until they fail and returns the command's output.
    It verifies that no process is left."""

    def run(*jobs: dict[str, Any], options: tuple[str, ...] = ()) -> str:
        with RunningJobs(write_jobs(tmp_path, *jobs), tmp_path / "runs", *options) as running:
            code = running.end(END_SECONDS)
            output = running.output
        assert code == 1, output
        assert left_running(tmp_path) == {}, output
        assert "Traceback" not in output and "starting" not in output, "no restart could have mended it"
        return output

    return run
