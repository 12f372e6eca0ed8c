"""A random batch of prompts with sampled responses, in float64."""

from collections.abc import Callable

import pytest

from kubealign_services.batch.packed import Batch
from support.batches import random_batch


@pytest.fixture
def make_batch() -> Callable[..., Batch]:
    return random_batch
