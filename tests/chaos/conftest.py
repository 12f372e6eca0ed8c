"""Seeds of the runs: `pytest tests/chaos --seeds 0-9`."""

from collections.abc import Iterator

import pytest

from support.chaos.clocks import preload_faketime


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--seeds", default="0-9", help="first and last seed of the schedules of faults, as FIRST-LAST"
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "seed" in metafunc.fixturenames:
        first, last = map(int, metafunc.config.getoption("--seeds").split("-"))
        metafunc.parametrize("seed", range(first, last + 1))


@pytest.fixture(scope="session", autouse=True)
def faketime() -> Iterator[None]:
    """Load libfaketime into the processes of all runs."""
    with pytest.MonkeyPatch.context() as patch:
        preload_faketime(patch)
        yield
