from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.running import RunningJobs, left_running
from support.tiny_jobs import write_jobs

#: From the start of the command to its end, on a busy machine: importing torch is most of it.
END_SECONDS = 120.0

Failed = Callable[..., str]


@pytest.fixture
def failed(tmp_path: Path) -> Failed:
    """Runs jobs with `kubealign run` until they fail; what a person reads. Nothing of them runs then."""

    def run(*jobs: dict[str, Any], options: tuple[str, ...] = ()) -> str:
        with RunningJobs(write_jobs(tmp_path, *jobs), tmp_path / "runs", *options) as running:
            code = running.end(END_SECONDS)
            said = running.output
        assert code == 1, said
        assert left_running(tmp_path) == {}, said
        assert "Traceback" not in said and "starting" not in said, "no restart could have mended it"
        return said

    return run
