"""Numbers of heads that the ranks of a context group can share."""

from typing import Any

import pytest
import torch

from kubealign_services.training.torch_backend.context_parallel.context_group import (
    ContextGroup,
    join_context_group,
)
from kubealign_services.training.torch_backend.context_parallel.head_exchange import (
    IndivisibleHeads,
    kv_head_repeats,
    scatter_heads,
)

NO_PROCESSES: Any = None


@pytest.mark.parametrize(
    ("kv_heads", "ranks", "repeats"), [(8, 2, 1), (8, 8, 1), (2, 4, 2), (1, 4, 4), (6, 4, 2), (3, 2, 2)]
)
def test_key_heads_are_repeated_as_little_as_possible(kv_heads: int, ranks: int, repeats: int) -> None:
    assert kv_head_repeats(kv_heads, ranks) == repeats
    assert kv_heads * repeats % ranks == 0


def test_heads_that_the_ranks_do_not_divide_are_refused() -> None:
    states = torch.zeros(2, 6, 8)
    group = ContextGroup(4, 0, NO_PROCESSES)
    message = r"backend\.torch\.contextParallel: 4; the model has 6 attention heads, which it must"
    with pytest.raises(IndivisibleHeads, match=message):
        scatter_heads(states, states, states, group)


def test_groups_that_do_not_divide_the_ranks_are_refused() -> None:
    assert join_context_group(1, 3, 60) is None
    message = r"contextParallel: 2; it must divide the ranks, of which there are 3"
    with pytest.raises(ValueError, match=message):
        join_context_group(2, 3, 60)
