"""Models loaded from folders: trunks and heads."""

# mypy: disable-error-code="no-untyped-call"
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSequenceClassification, LlamaForSequenceClassification

from kubealign.spec.sections.precision import Precision
from kubealign.spec.sections.training import HeadInit
from kubealign_services.batch.packed import Batch
from kubealign_services.scoring.attributes import UnknownAttribute
from kubealign_services.training.contract import Head
from kubealign_services.training.torch_backend.frozen_model import FrozenTorchModel
from kubealign_services.training.torch_backend.model.loading import load_model
from kubealign_services.training.torch_backend.model.packed_model import PackedTokens

CPU = torch.device("cpu")
VALUES = frozenset({"values"})


def scores_alone(folder: Path, batch: Batch, label: int = 0) -> list[torch.Tensor]:
    """Compute the reward model's head at every token of every sequence, by transformers."""
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    with torch.no_grad():
        return [
            model.score(model.model(tokens[None].long()).last_hidden_state)[0, :, label]
            for tokens in batch.tokens.split(batch.lengths.tolist())
        ]


def test_a_score_is_stored_at_its_token(reward_llama: Path, make_batch: Callable[..., Batch]) -> None:
    batch = make_batch(6, 1, 9)
    model = load_model(reward_llama, Head.SCORE)
    with torch.no_grad():
        actual = model(PackedTokens.from_batch(batch, CPU), VALUES)["values"]
    torch.testing.assert_close(actual, torch.cat(scores_alone(reward_llama, batch)), atol=1e-5, rtol=1e-5)


def test_a_value_is_stored_one_token_later(reward_llama: Path, make_batch: Callable[..., Batch]) -> None:
    batch = make_batch(6, 1, 9)
    model = load_model(reward_llama, Head.VALUE, head_init=HeadInit.REWARD_MODEL)
    with torch.no_grad():
        actual = model(PackedTokens.from_batch(batch, CPU), VALUES)["values"]
    expected = [torch.cat([torch.zeros(1), scores[:-1]]) for scores in scores_alone(reward_llama, batch)]
    torch.testing.assert_close(actual, torch.cat(expected), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("attributes", "weights"), [({"kind": -2.0, "good": 0.5}, [0.5, 0.0, -2.0]), ({}, [1.0, 1.0, 1.0])]
)
def test_a_value_is_the_weighted_sum_of_several_scores(
    three_scores: Path,
    make_batch: Callable[..., Batch],
    attributes: dict[str, float],
    weights: list[float],
) -> None:
    batch = make_batch(6, 1, 9)
    model = load_model(three_scores, Head.VALUE, head_init=HeadInit.REWARD_MODEL, attributes=attributes)
    assert model.score is not None and model.score.weight.shape == (1, 32)
    with torch.no_grad():
        actual = model(PackedTokens.from_batch(batch, CPU), VALUES)["values"]
    alone = [scores_alone(three_scores, batch, label) for label in range(3)]
    expected = [
        torch.cat([torch.zeros(1), sum(w * scores[:-1] for w, scores in zip(weights, each, strict=True))])
        for each in zip(*alone, strict=True)
    ]
    torch.testing.assert_close(actual, torch.cat(expected), atol=1e-5, rtol=1e-5)


def test_an_attribute_that_the_reward_model_lacks_is_refused(three_scores: Path) -> None:
    with pytest.raises(UnknownAttribute, match="the model has no score true; it gives good, long, kind"):
        load_model(three_scores, Head.VALUE, head_init=HeadInit.REWARD_MODEL, attributes={"true": 1.0})


@pytest.mark.parametrize("folder", ["llama", "reward_llama"])
def test_a_value_head_starts_with_zeros(
    folder: str, request: pytest.FixtureRequest, make_batch: Callable[..., Batch]
) -> None:
    model = load_model(request.getfixturevalue(folder), Head.VALUE)
    batch = make_batch(6, 2)
    values = model(PackedTokens.from_batch(batch, CPU), VALUES)["values"]
    assert not values.any()
    values.sum().backward()
    assert model.score is not None and model.score.weight.grad is not None
    assert model.score.weight.grad.any()


def test_a_score_head_in_addition_to_the_language_model_head(
    llama: Path, make_batch: Callable[..., Batch]
) -> None:
    batch = make_batch(6, 2)
    both = frozenset({"values", "logprobs"})
    actual = [
        load_model(llama, Head.SCORE, seed=seed)(PackedTokens.from_batch(batch, CPU), both)
        for seed in (1, 1, 2)
    ]
    assert actual[0].keys() == both
    assert torch.equal(actual[0]["values"], actual[1]["values"])
    assert not torch.equal(actual[0]["values"], actual[2]["values"])


def test_logits_are_computed_for_target_tokens_only(llama: Path, make_batch: Callable[..., Batch]) -> None:
    batch, outputs = make_batch(4, 3), frozenset({"logprobs", "entropy"})
    model = load_model(llama, Head.LANGUAGE_MODEL)
    everywhere = model(PackedTokens.from_batch(batch, CPU), outputs)
    # The last two tokens of the first sequence, all of the second: the first token has no log-probability.
    batch.token_columns["loss_mask"] = torch.tensor([0, 0, 1, 1, 1, 1, 1], dtype=torch.uint8)
    packed = PackedTokens.from_batch(batch, CPU)
    assert packed.target_indices.tolist() == [2, 3, 5, 6]
    for name, column in model(packed, outputs).items():
        assert everywhere[name][1] != 0
        torch.testing.assert_close(column[packed.target_indices], everywhere[name][packed.target_indices])
        assert not column[[0, 1, 4]].any()


def test_errors_name_the_wrong_folder(llama: Path, reward_llama: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is a reward model"):
        load_model(reward_llama, Head.LANGUAGE_MODEL)
    with pytest.raises(ValueError, match="headInit RewardModel needs a reward model"):
        load_model(llama, Head.VALUE, head_init=HeadInit.REWARD_MODEL)
    with pytest.raises(ValueError, match=r"has no config\.json"):
        load_model(tmp_path, Head.SCORE)


@pytest.fixture
def three_scores(reward_llama: Path, tmp_path: Path) -> Path:
    """A reward model with the scores good, long and kind."""
    config = LlamaForSequenceClassification.from_pretrained(reward_llama).config
    config.num_labels = 3
    config.id2label = {0: "good", 1: "long", 2: "kind"}
    torch.manual_seed(6)
    LlamaForSequenceClassification(config).save_pretrained(tmp_path)
    return tmp_path


def test_several_scores_are_stored_at_their_token(
    three_scores: Path, make_batch: Callable[..., Batch]
) -> None:
    batch = make_batch(6, 1, 9)
    frozen = FrozenTorchModel.load(three_scores, Head.SCORE, Precision.FLOAT32, microbatch_tokens=8)
    assert frozen.scores == ("good", "long", "kind")
    actual = frozen.forward(batch, VALUES)["values"]
    expected = [torch.cat(scores_alone(three_scores, batch, label)) for label in range(3)]
    assert actual.shape == (16, 3)
    torch.testing.assert_close(actual, torch.stack(expected, 1), atol=1e-5, rtol=1e-5)


def test_a_head_with_unexpected_scores_is_refused(three_scores: Path, reward_llama: Path) -> None:
    expected = r"with the scores good, long, kind; wanted are "
    assert load_model(three_scores, Head.SCORE, scores=("good", "long", "kind")).score is not None
    for scores in (("good", "kind", "long"), ("good", "long"), ("good",)):
        with pytest.raises(ValueError, match=expected + ", ".join(scores)):
            load_model(three_scores, Head.SCORE, scores=scores)
    with pytest.raises(ValueError, match=expected + "value"):
        load_model(three_scores, Head.VALUE, head_init=HeadInit.REWARD_MODEL)
    # A single score matches any expected name.
    load_model(reward_llama, Head.SCORE, scores=("rating",))
    critic = load_model(three_scores, Head.VALUE)
    assert critic.score is not None and critic.score.weight.shape == (1, 32)


def test_frozen_and_trained_models_compute_the_same(
    llama: Path, reward_llama: Path, make_batch: Callable[..., Batch]
) -> None:
    batch = make_batch(6, 1, 9, 4)
    reference = FrozenTorchModel.load(
        llama, Head.LANGUAGE_MODEL, Precision.FLOAT32, microbatch_tokens=8
    ).offload()
    actual = reference.forward(batch, frozenset({"logprobs"}))["logprobs"]
    with torch.no_grad():
        expected = load_model(llama, Head.LANGUAGE_MODEL)(
            PackedTokens.from_batch(batch, CPU), frozenset({"logprobs"})
        )
    torch.testing.assert_close(actual, expected["logprobs"], atol=1e-6, rtol=1e-6)
    reward = FrozenTorchModel.load(reward_llama, Head.SCORE, Precision.FLOAT32, microbatch_tokens=8)
    scores = reward.forward(batch, VALUES)["values"]
    torch.testing.assert_close(scores, torch.cat(scores_alone(reward_llama, batch)), atol=1e-5, rtol=1e-5)
    assert reward.pooling is None
    half = FrozenTorchModel.load(reward_llama, Head.SCORE, Precision.BFLOAT16, microbatch_tokens=8)
    assert half.forward(batch, VALUES)["values"].dtype is torch.float32
    torch.testing.assert_close(half.forward(batch, VALUES)["values"], scores, atol=0.3, rtol=0)
