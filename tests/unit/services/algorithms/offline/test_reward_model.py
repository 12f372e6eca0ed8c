"""Reward models: pooling, Bradley-Terry and least squares, by hand and against slow loops."""

import itertools
import math

import pytest
import torch
from torch import Tensor

from kubealign.spec import algorithms as spec
from kubealign_services.algorithms.contract import ModelOutputs, Objective, ScoreAlgorithm
from kubealign_services.algorithms.losses.pooling import pool_outputs
from kubealign_services.algorithms.offline.reward_model import RewardModelAlgorithm
from kubealign_services.batch.packed import Batch, pack
from support.batches import random_batch

VALUES = torch.tensor([9, 1, 2, 9, 1, 9, 0.5, 9, -1, 2.5], dtype=torch.float64)
BY_ATTRIBUTE = torch.stack([VALUES, -VALUES], 1)
NAMES = ("good", "long")
LAST, SUM = spec.ScorePooling.LAST_TOKEN, spec.ScorePooling.RESPONSE_SUM


def pairs() -> Batch:
    """Four sequences, two pairs of them; head outputs are VALUES."""
    batch = pack([[1, 2, 3], [1, 2], [1, 2], [1, 2, 3]], ["0", "1", "2", "3"])
    batch.token_columns["loss_mask"] = torch.tensor([0, 1, 1, 0, 1, 0, 1, 0, 1, 1], dtype=torch.uint8)
    return batch


def rated(*ratings: object) -> Batch:
    batch = pairs()
    batch.sequence_columns["ratings"] = torch.tensor(ratings, dtype=torch.float64)
    return batch


def regression(**fields: object) -> RewardModelAlgorithm:
    entry = spec.RewardModelSpec(objective=spec.RewardObjective(regression=spec.Regression()))
    return RewardModelAlgorithm(entry.model_copy(update=fields))


def figures(objective: Objective, outputs: ModelOutputs, batch: Batch) -> tuple[float, dict[str, float]]:
    """Return the loss and the metrics of a whole minibatch."""
    objective.prepare(batch)
    terms = objective.loss(outputs, batch)
    return float(terms.loss), {name: float(value) for name, value in terms.sums.items()}


def test_pooling() -> None:
    assert pool_outputs(VALUES, pairs(), LAST).tolist() == [2, 1, 0.5, 2.5]
    assert pool_outputs(VALUES, pairs(), SUM).tolist() == [3, 1, 0.5, 1.5]


def test_each_of_several_scores_is_pooled_alone() -> None:
    assert pool_outputs(BY_ATTRIBUTE, pairs(), LAST).tolist() == [[2, -2], [1, -1], [0.5, -0.5], [2.5, -2.5]]
    assert pool_outputs(BY_ATTRIBUTE, pairs(), SUM).tolist() == [[3, -3], [1, -1], [0.5, -0.5], [1.5, -1.5]]


def test_bradley_terry_by_hand() -> None:
    # Sums over the response: chosen 3 and 0.5, rejected 1 and 1.5: margins 2 and -1.
    #   -log sigmoid(2) = 0.1269280110;  -log sigmoid(-1) = 1.3132616875; mean 0.7200948493
    # score^2: (9 + 1 + 0.25 + 2.25) / 4 = 3.125. Chosen tokens' log-probabilities: -1, -1, -4: language
    # loss 2.
    logprobs = torch.full((10,), -100.0, dtype=torch.float64)
    logprobs[[1, 2]] = -1.0
    logprobs[6] = -4.0
    objective = RewardModelAlgorithm(
        spec.RewardModelSpec(pooling=SUM, language_model_coefficient=0.5, score_penalty=0.01)
    ).policy_objective()
    assert objective.unit == 2 and objective.outputs == {"values", "logprobs"}
    loss, metrics = figures(objective, ModelOutputs(logprobs=logprobs, values=VALUES), pairs())
    assert loss == pytest.approx(0.7200948493 + 0.5 * 2 + 0.01 * 3.125, abs=1e-9)
    assert metrics == pytest.approx(
        {
            "rm/loss": 0.7200948493,
            "rm/accuracy": 0.5,
            "rm/margin": 0.5,
            "rm/chosen_mean": 1.75,
            "rm/rejected_mean": 1.25,
            "rm/score_square": 3.125,
            "rm/language_loss": 2.0,
        },
        abs=1e-9,
    )


def test_an_odd_number_of_preference_sequences_is_refused() -> None:
    objective = RewardModelAlgorithm(spec.RewardModelSpec()).policy_objective()
    with pytest.raises(ValueError, match="pairs of sequences, and there are 3"):
        objective.prepare(pairs().select([0, 1, 2]))


@pytest.mark.parametrize("ratings", [(1, 1, 1, 1), ([1], [1], [1], [1])])
def test_regression_by_hand(ratings: tuple[object, ...]) -> None:
    # Last outputs 2, 1, 0.5, 2.5 against 1, 1, 1, 1: errors 1, 0, -0.5, 1.5: squares 1 + 0 + 0.25 + 2.25 =
    # 3.5, over 4. Absolute errors (1 + 0 + 0.5 + 1.5) / 4. Scores (2 + 1 + 0.5 + 2.5) / 4.
    objective = regression().score_objective(["rating"])
    assert objective.unit == 1 and objective.outputs == {"values"}
    loss, metrics = figures(objective, ModelOutputs(values=VALUES), rated(*ratings))
    assert loss == pytest.approx(0.875)
    assert metrics == pytest.approx(
        {"rm/loss": 0.875, "rm/absolute_error": 0.75, "rm/score_mean": 1.5, "rm/score_square": 11.5 / 4}
    )


def test_several_attributes_by_hand() -> None:
    # Scores good 2, 1, 0.5, 2.5; long their negatives. Of the eight ratings five are known:
    #   good: 2 - 1 = 1;  unknown;  0.5 - 0 = 0.5;  unknown.   long: -2 - 0 = -2;  -1 - 1 = -2;  -0.5 - 1 =
    #   -1.5;  unknown
    #   squares 1 + 0.25 + 4 + 4 + 2.25 = 11.5, over 5 = 2.3; absolute 1 + 0.5 + 2 + 2 + 1.5 = 7, over 5 = 1.4
    #   good alone (1 + 0.5) / 2 = 0.75; long alone (2 + 2 + 1.5) / 3 = 1.8333333333
    # All eight scores count in the penalty: 2 (4 + 1 + 0.25 + 6.25) / 8 = 2.875
    nan = math.nan
    batch = rated([1, 0], [nan, 1], [0, 1], [nan, nan])
    objective = regression(score_penalty=0.1).score_objective(NAMES)
    loss, metrics = figures(objective, ModelOutputs(values=BY_ATTRIBUTE), batch)
    assert loss == pytest.approx(2.3 + 0.1 * 2.875)
    assert metrics == pytest.approx(
        {
            "rm/loss": 2.3,
            "rm/absolute_error": 1.4,
            "rm/absolute_error/good": 0.75,
            "rm/absolute_error/long": 5.5 / 3,
            "rm/score_mean": 0.0,
            "rm/score_square": 2.875,
        }
    )


def test_unrated_attribute_has_no_metric_and_no_gradient() -> None:
    batch = rated(*[[rating, math.nan] for rating in (1, 2, 3, 4)])
    values = BY_ATTRIBUTE.clone().requires_grad_()
    objective = regression().score_objective(NAMES)
    objective.prepare(batch)
    terms = objective.loss(ModelOutputs(values=values), batch)
    assert "rm/absolute_error/good" in terms.sums and "rm/absolute_error/long" not in terms.sums
    (gradient,) = torch.autograd.grad(terms.loss, values)
    assert gradient[:, 0].abs().sum() > 0 and not gradient[:, 1].any()


def test_score_and_rating_counts_must_match() -> None:
    objective, batch = regression().score_objective(NAMES), rated([1, 0], [1, 0], [1, 0], [1, 0])
    objective.prepare(batch)
    with pytest.raises(ValueError, match="gives 1 scores, and the rows hold 2 ratings"):
        objective.loss(ModelOutputs(values=VALUES), batch)


def test_reward_model_is_a_score_algorithm() -> None:
    assert isinstance(regression(), ScoreAlgorithm)


@pytest.mark.parametrize("pooling", [LAST, SUM])
def test_regression_equals_a_slow_loop(pooling: spec.ScorePooling) -> None:
    batch, generator = (
        random_batch([3, 1, 4, 2, 2], [0, 0, 1, 1, 2], seed=3),
        torch.Generator().manual_seed(4),
    )
    ratings = torch.randint(5, (5, 3), generator=generator).double()
    ratings[torch.rand(5, 3, generator=generator) < 0.3] = math.nan
    batch.sequence_columns["ratings"] = ratings
    shape = (len(batch.tokens), 3)
    values = torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()
    logprobs = batch.token("behaviour_logprobs").clone().requires_grad_()
    objective = regression(
        pooling=pooling, score_penalty=0.2, language_model_coefficient=0.3
    ).policy_objective()
    objective.prepare(batch)
    terms = objective.loss(ModelOutputs(values=values, logprobs=logprobs), batch)

    errors: list[Tensor] = []
    squares: list[Tensor] = []
    tokens: list[Tensor] = []
    mask = batch.token("loss_mask").bool()
    for i, (start, end) in enumerate(itertools.pairwise(batch.cu_seqlens.tolist())):
        tokens += [-logprobs[t] for t in range(start, end) if mask[t]]
        for n in range(3):
            score = values[end - 1, n]
            if pooling is SUM:
                score = torch.stack([values[t, n] for t in range(start, end) if mask[t]]).sum()
            squares.append(score**2)
            if not math.isnan(float(ratings[i, n])):
                errors.append((score - float(ratings[i, n])) ** 2)
    assert 5 < len(errors) < 15
    slow = sum(errors) / len(errors) + 0.2 * sum(squares) / len(squares) + 0.3 * sum(tokens) / len(tokens)
    assert isinstance(slow, Tensor)
    assert float(terms.loss.detach()) == pytest.approx(float(slow.detach()), abs=1e-12)
    result = torch.autograd.grad(terms.loss, [values, logprobs])
    for gradient, expected in zip(result, torch.autograd.grad(slow, [values, logprobs]), strict=True):
        torch.testing.assert_close(gradient, expected, atol=1e-12, rtol=0)
