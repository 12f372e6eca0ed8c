"""Pooling of token scores, weighting of several scores, ensembles."""

import pytest
import torch
from torch import Tensor

from kubealign.spec.algorithms import ScorePooling
from kubealign.spec.sections.rewards import EnsembleAggregation
from kubealign_services.batch.packed import Batch, pack
from kubealign_services.scoring.attributes import UnknownAttribute, attribute_weights
from kubealign_services.scoring.reward_models import ModelReward, NonFiniteScore, RewardModelEnsemble


def batch() -> Batch:
    result = pack([[5, 6, 7], [5, 8]], ["a", "b"])
    result.token_columns["loss_mask"] = torch.tensor([0, 1, 1, 0, 1], dtype=torch.uint8)
    return result


def forward(values: list[float]) -> ModelReward:
    def run(batch: Batch, outputs: frozenset[str]) -> dict[str, Tensor]:
        assert outputs == {"values"}
        return {"values": torch.tensor(values)}

    return ModelReward(run, ScorePooling.RESPONSE_SUM)


def test_pooling() -> None:
    model = forward([1.0, 2.0, 3.0, 4.0, 5.0])
    assert model.score(batch()).tolist() == [2.0 + 3.0, 5.0]
    last = ModelReward(model._forward, ScorePooling.LAST_TOKEN)
    assert last.score(batch()).tolist() == [3.0, 5.0]


def test_non_finite_score_names_its_sample() -> None:
    with pytest.raises(NonFiniteScore, match="no finite score for b"):
        forward([1.0, 2.0, 3.0, 4.0, float("nan")]).score(batch())


def of_two(scores: list[tuple[float, float]], **weights: float) -> ModelReward:
    """Return a model with the scores good and long, read at the last token of each sequence."""
    values = torch.full((5, 2), -7.0)
    values[[2, 4]] = torch.tensor(scores, dtype=torch.float32)
    return ModelReward(
        lambda batch, outputs: {"values": values},
        ScorePooling.LAST_TOKEN,
        names=("good", "long"),
        weights=weights,
    )


def test_scores_are_weighted_by_name() -> None:
    # 0.5 * 2 - 1 * 3 = -2;  0.5 * 1 - 1 * 0 = 0.5
    scored = of_two([(2, 3), (1, 0)], good=0.5, long=-1).score_details(batch())
    assert scored.rewards.tolist() == [-2, 0.5]
    assert {name: column.tolist() for name, column in scored.attributes.items()} == {
        "good": [2, 1],
        "long": [3, 0],
    }
    assert scored.disagreement is None
    assert of_two([(2, 3), (1, 0)]).score(batch()).tolist() == [5, 1], "without weights all weigh 1"
    assert of_two([(2, 3), (1, 0)], long=2).score(batch()).tolist() == [6, 0], "what is not named weighs 0"


def test_one_score_has_no_attributes() -> None:
    assert forward([1.0, 2.0, 3.0, 4.0, 5.0]).score_details(batch()).attributes == {}


def test_unknown_attribute_lists_the_scores() -> None:
    with pytest.raises(UnknownAttribute, match="has no score kind; it gives good, long"):
        attribute_weights(("good", "long"), {"good": 1, "kind": 1})


def test_infinite_attribute_of_weight_zero_is_found() -> None:
    with pytest.raises(NonFiniteScore, match="no finite score for b"):
        of_two([(2, 3), (1, float("inf"))], good=1).score_details(batch())


@pytest.mark.parametrize(
    ("aggregate", "rewards", "good"),
    [
        # Members' rewards: (5, 1), (3, 3), (1, 5). Their means 3 and 3, the least 1 and 1.
        (EnsembleAggregation.MEAN, [3, 3], [4 / 3, 5 / 3]),
        (EnsembleAggregation.MINIMUM, [1, 1], [0, 1]),
    ],
)
def test_an_ensemble_by_hand(aggregate: EnsembleAggregation, rewards: list[float], good: list[float]) -> None:
    members = [of_two([(2, 3), (1, 0)]), of_two([(2, 1), (1, 2)]), of_two([(0, 1), (3, 2)])]
    scored = RewardModelEnsemble(members, aggregate).score_details(batch())
    assert scored.rewards.tolist() == rewards
    assert scored.attributes["good"].tolist() == pytest.approx(good)
    # Deviation of 5, 3, 1: sqrt((4 + 0 + 4) / 3) = 1.6329931619.
    assert scored.disagreement is not None
    assert scored.disagreement.tolist() == pytest.approx([(8 / 3) ** 0.5] * 2)


def test_ensemble_models_must_have_the_same_scores() -> None:
    one, two = forward([0.0] * 5), of_two([(2, 3), (1, 0)])
    with pytest.raises(UnknownAttribute, match=r"models\[1\] gives the scores good, long; models\[0\] gives"):
        RewardModelEnsemble([one, two], EnsembleAggregation.MEAN)
    other = ModelReward(one._forward, ScorePooling.LAST_TOKEN, names=("long", "good"))
    with pytest.raises(UnknownAttribute, match="gives the scores long, good"):
        RewardModelEnsemble([two, other], EnsembleAggregation.MEAN)
    named = ModelReward(one._forward, ScorePooling.LAST_TOKEN, names=("LABEL_0",))
    assert RewardModelEnsemble([one, named], EnsembleAggregation.MEAN).score_details(
        batch()
    ).rewards.tolist() == [0, 0]
