"""Wall clocks of the processes of a run, which a test sets while they run; monotonic clocks stay right.

libfaketime is loaded into the processes of `support.preloaded_server`, and reads the offset of each process
from a file that is named by its process id, every two seconds. NATS, a static Go program, is not affected.
"""

import importlib.util
from pathlib import Path

import pytest

ENV_CLOCKS = "KUBEALIGN_TEST_CLOCKS"
_LIBRARY = "vendor/libfaketime/src/libfaketime.so.1"


def preload_faketime(patch: pytest.MonkeyPatch) -> None:
    """Have the processes of later runs load libfaketime. Must precede the first run of the test process."""
    package = importlib.util.find_spec("libfaketime")
    assert package is not None, "libfaketime is not installed"
    assert package.submodule_search_locations is not None
    patch.delenv("FAKETIME", raising=False)
    patch.setenv("LD_PRELOAD", str(Path(package.submodule_search_locations[0]) / _LIBRARY))
    patch.setenv("FAKETIME_DONT_FAKE_MONOTONIC", "1")
    patch.setenv("FAKETIME_CACHE_DURATION", "1")


def clock_folder(folder: Path, patch: pytest.MonkeyPatch) -> Path:
    """Create the folder of the clock files of runs that are started while `patch` is in effect."""
    clocks = folder / "clocks"
    clocks.mkdir()
    patch.setenv(ENV_CLOCKS, str(clocks))
    return clocks


def set_clock(clocks: Path, pid: int, seconds: float) -> None:
    """Set the wall clock of a process ahead by `seconds`; a negative number sets it back."""
    draft = clocks / f".{pid}"
    draft.write_text(f"{seconds:+.0f}\n")
    draft.replace(clocks / str(pid))
