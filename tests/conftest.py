"""For all tests: property tests are judged by what they find, not by how fast a loaded machine finds it. Runs
start no dashboard: those who test that ask for it. What takes longest comes first."""

import gc
import os
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import settings

from support.longest_first import weight

os.environ.setdefault("KUBEALIGN_RUN_DASHBOARD", "off")
# Tests share the cores, and so do their jobs' processes: OpenMP's threads that wait sleep at once.
os.environ.setdefault("GOMP_SPINCOUNT", "0")

settings.register_profile("kubealign", deadline=None)
settings.load_profile("kubealign")

_TESTS = Path(__file__).parent


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is imported stays, so nobody looks for garbage in it: neither meanwhile nor later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_unconfigure() -> None:
    """Or libraries that count what is left of them at the end would complain."""
    gc.unfreeze()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files in the order of what they take; the tests of each stay together, and in their order."""
    items.sort(key=lambda item: -weight(item.path.relative_to(_TESTS).as_posix()))
