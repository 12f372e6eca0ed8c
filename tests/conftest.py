"""Configuration of all tests: property tests have no deadline, because a loaded machine is slow; runs start
no dashboard unless a test asks for it; the slowest test files run first."""

import gc
import os
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import settings

from support.longest_first import weight

os.environ.setdefault("KUBEALIGN_RUN_DASHBOARD", "off")
# Tests and the processes of their jobs share the cores, so idle OpenMP threads sleep instead of spinning.
os.environ.setdefault("GOMP_SPINCOUNT", "0")
if not Path("/dev/nvidiactl").exists():
    # Without a GPU, GPU kernels are interpreted. Read when triton is imported.
    os.environ.setdefault("TRITON_INTERPRET", "1")

settings.register_profile("kubealign", deadline=None)
settings.load_profile("kubealign")

_TESTS = Path(__file__).parent


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Exclude imported objects from garbage collection: they stay alive, so scanning them only takes time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_unconfigure() -> None:
    """Unfreeze all objects, because some libraries report objects that are left at exit."""
    gc.unfreeze()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort files by duration, the slowest first; the tests of each file stay together and in order."""
    items.sort(key=lambda item: -weight(item.path.relative_to(_TESTS).as_posix()))
