"""Default process groups of a test's own process."""

from collections.abc import Iterator

import pytest
import torch.distributed as dist


@pytest.fixture(autouse=True)
def no_process_group_stays() -> Iterator[None]:
    """Destroy the process group of one rank that bf16 creates, which a role keeps until it ends."""
    yield
    if dist.is_initialized():
        dist.destroy_process_group()
