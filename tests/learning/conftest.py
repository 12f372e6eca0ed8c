"""Runs the learning tests on one thread: fastest for models this small, above all beside other tests."""

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    torch.set_num_threads(1)
