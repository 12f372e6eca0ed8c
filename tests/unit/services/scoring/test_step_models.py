"""Scores of process reward models, and their aggregation."""

import math

import pytest
import torch
from torch import Tensor

from kubealign.spec.sections.step_rewards import StepAggregation
from kubealign_services.batch.packed import Batch, pack
from kubealign_services.scoring.reward_models import NonFiniteScore
from kubealign_services.scoring.step_models import StepModel, aggregate_steps


def model(values: list[float] | list[list[float]]) -> StepModel:
    def forward(batch: Batch, outputs: frozenset[str]) -> dict[str, Tensor]:
        assert outputs == {"values"}
        return {"values": torch.tensor(values)}

    return StepModel(forward)


def batch() -> Batch:
    return pack([[5, 6, 7], [5, 8]], ["a", "b"])


def test_a_score_is_the_sigmoid_at_the_last_token_of_its_step() -> None:
    logit = math.log(3)
    scores = model([9, logit, -logit, 9, 0]).score(batch(), [[1, 2], [1]])
    assert scores == [[pytest.approx(0.75), pytest.approx(0.25)], [pytest.approx(0.5)]]


def test_of_two_outputs_the_second_is_that_of_a_right_step() -> None:
    values = [[9.0, 9.0], [1.0, 1.0 + math.log(3)], [2.0, 2.0 - math.log(3)], [0.0, 0.0], [3.0, 3.0]]
    scores = model(values).score(batch(), [[1, 2], [1]])
    expected = torch.softmax(torch.tensor(values), 1)[[1, 2, 4], 1].tolist()
    assert [*scores[0], *scores[1]] == pytest.approx(expected)
    assert scores[0] == pytest.approx([0.75, 0.25])


def test_a_response_may_have_no_steps() -> None:
    assert model([0.0] * 5).score(batch(), [[], [1]]) == [[], [0.5]]


def test_a_score_that_is_not_finite_names_its_sample() -> None:
    with pytest.raises(NonFiniteScore, match="no finite score for a step of b"):
        model([0, 0, 0, 0, math.nan]).score(batch(), [[1], [1]])
    assert model([math.nan, 0, 0, 0, 0]).score(batch(), [[1], [1]]) == [[0.5], [0.5]]


@pytest.mark.parametrize(
    ("how", "expected"),
    [("Sum", 1.65), ("Minimum", 0.25), ("Product", 0.25 * 0.9 * 0.5), ("Mean", 0.55), ("Last", 0.5)],
)
def test_aggregation(how: str, expected: float) -> None:
    aggregation = StepAggregation(how)
    assert aggregate_steps([0.25, 0.9, 0.5], aggregation) == pytest.approx(expected)
    assert aggregate_steps([], aggregation) == 0
