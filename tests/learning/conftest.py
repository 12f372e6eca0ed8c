"""Models as small as these run fastest on one thread, and beside other tests much faster."""

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    torch.set_num_threads(1)
