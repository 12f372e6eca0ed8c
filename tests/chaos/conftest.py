"""Seeds of the runs: `pytest tests/chaos --seeds 0-9`."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--seeds", default="0-9", help="first and last seed of the schedules of faults, as FIRST-LAST"
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "seed" in metafunc.fixturenames:
        first, last = map(int, metafunc.config.getoption("--seeds").split("-"))
        metafunc.parametrize("seed", range(first, last + 1))
