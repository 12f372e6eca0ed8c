"""Token scores to one score a sequence."""

import pytest
import torch
from torch import Tensor

from kubealign.spec.algorithms import Pooling
from kubealign_services.batch.packed import Batch, pack
from kubealign_services.scoring.models import ModelReward, NonFiniteScore


def batch() -> Batch:
    made = pack([[5, 6, 7], [5, 8]], ["a", "b"])
    made.token_columns["loss_mask"] = torch.tensor([0, 1, 1, 0, 1], dtype=torch.uint8)
    return made


def forward(values: list[float]) -> ModelReward:
    def run(batch: Batch, outputs: frozenset[str]) -> dict[str, Tensor]:
        assert outputs == {"values"}
        return {"values": torch.tensor(values)}

    return ModelReward(run, Pooling.RESPONSE_SUM)


def test_pooling() -> None:
    model = forward([1.0, 2.0, 3.0, 4.0, 5.0])
    assert model.score(batch()).tolist() == [2.0 + 3.0, 5.0]
    last = ModelReward(model._forward, Pooling.LAST_TOKEN)
    assert last.score(batch()).tolist() == [3.0, 5.0]


def test_a_score_that_is_no_number_names_its_sample() -> None:
    with pytest.raises(NonFiniteScore, match="no finite score for b"):
        forward([1.0, 2.0, 3.0, 4.0, float("nan")]).score(batch())
