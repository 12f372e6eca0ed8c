"""Position of a rank among context groups."""

from typing import Any

import pytest
import torch

from kubealign_services.training.torch_backend.context_parallel.context_group import ContextGroup
from kubealign_services.training.torch_backend.passes.microbatch_passes import RankContext

NO_PROCESSES: Any = None


@pytest.mark.parametrize(("device", "tokens"), [("cpu", 2 * 1024), ("meta", 2 * 4096)])
def test_two_groups_of_two_ranks(device: str, tokens: int) -> None:
    ranks = [
        RankContext(rank, 4, torch.device(device), 4096, ContextGroup(2, rank % 2, NO_PROCESSES))
        for rank in range(4)
    ]
    assert [rank.replica for rank in ranks] == [0, 0, 1, 1]
    assert [rank.reports for rank in ranks] == [True, False, True, False]
    assert {rank.replicas for rank in ranks} == {2}
    assert {rank.pack_tokens for rank in ranks} == {tokens}


def test_ranks_without_context_groups() -> None:
    ranks = [RankContext(rank, 3, torch.device("meta"), 4096) for rank in range(3)]
    assert [rank.replica for rank in ranks] == [0, 1, 2]
    assert all(rank.reports for rank in ranks)
    assert {(rank.replicas, rank.pack_tokens) for rank in ranks} == {(3, 4096)}
