"""Process reward models: classification of steps, against a slow loop and torch's cross-entropy."""

import math

import pytest
import torch
from torch import Tensor

from kubealign.spec import algorithms as spec
from kubealign_services.algorithms.contract import ModelOutputs
from kubealign_services.algorithms.offline.reward_model import RewardModelAlgorithm
from kubealign_services.batch.packed import Batch, pack
from support.batches import random_batch

NAN = math.nan
STEPS = spec.RewardObjective(step_classification=spec.StepClassification())


def labelled(batch: Batch, labels: list[float]) -> Batch:
    batch.token_columns["step_labels"] = torch.tensor(labels, dtype=torch.float32)
    return batch


def figures(batch: Batch, values: Tensor, **fields: object) -> dict[str, float]:
    """Return the loss and the metrics of a whole minibatch."""
    entry = spec.RewardModelSpec(objective=STEPS).model_copy(update=fields)
    objective = RewardModelAlgorithm(entry).score_objective(("score",))
    objective.prepare(batch)
    logprobs = torch.full_like(values, -0.25) if "logprobs" in objective.outputs else None
    terms = objective.loss(ModelOutputs(values=values, logprobs=logprobs), batch)
    return {"loss": float(terms.loss)} | {name: float(value) for name, value in terms.sums.items()}


def two_sequences() -> Batch:
    batch = pack([[1, 2, 3, 4], [1, 2, 3]], ["0", "1"])
    batch.token_columns["loss_mask"] = torch.tensor([0, 1, 1, 1, 0, 1, 1], dtype=torch.uint8)
    return labelled(batch, [NAN, 1, NAN, 0, NAN, NAN, 1])


def test_each_labelled_step_counts_the_same() -> None:
    values = torch.tensor([9, 2.0, 9, 1.0, 9, 9, 0.5], dtype=torch.float64)
    seen = figures(two_sequences(), values)
    # log(1 + e^-2) = 0.126928, log(1 + e^1) = 1.313262, log(1 + e^-0.5) = 0.474077
    assert seen["loss"] == pytest.approx((0.126928 + 1.313262 + 0.474077) / 3, abs=1e-6)
    assert seen["rm/accuracy"] == pytest.approx(2 / 3)
    assert seen["rm/step_label"] == pytest.approx(2 / 3)
    assert seen["rm/score_square"] == pytest.approx((4 + 1 + 0.25) / 3)


@pytest.mark.parametrize("seed", range(4))
def test_loss_equals_the_cross_entropy_of_two_classes(seed: int) -> None:
    """TRL's trainer of process reward models has two outputs; their difference is the one score here."""
    generator = torch.Generator().manual_seed(seed)
    batch = random_batch([3, 1, 5, 2], [0, 0, 1, 1], seed)
    draws = torch.rand(len(batch.tokens), generator=generator)
    labels = torch.where(draws < 0.3, 1.0, torch.where(draws < 0.5, 0.0, NAN))
    labels[-1] = 1.0
    labelled(batch, labels.tolist())
    values = torch.randn(len(batch.tokens), generator=generator, dtype=torch.float64)
    classes = torch.where(labels.isnan(), -100, labels.nan_to_num()).long()
    expected = torch.nn.functional.cross_entropy(torch.stack([torch.zeros_like(values), values], 1), classes)
    assert figures(batch, values)["loss"] == pytest.approx(float(expected), abs=1e-9)


def test_probabilities_are_labels_too() -> None:
    batch = labelled(pack([[1, 2]], ["0"]), [NAN, 0.25])
    batch.token_columns["loss_mask"] = torch.tensor([0, 1], dtype=torch.uint8)
    score = math.log(0.25 / 0.75)
    entropy = -0.25 * math.log(0.25) - 0.75 * math.log(0.75)
    seen = figures(batch, torch.tensor([0.0, score], dtype=torch.float64))
    assert seen["loss"] == pytest.approx(entropy, abs=1e-9), "the least loss is the label's entropy"
    assert seen["rm/step_probability"] == pytest.approx(0.25)


def test_regularisation() -> None:
    values = torch.tensor([9, 2.0, 9, 1.0, 9, 9, -0.5], dtype=torch.float64)
    plain = figures(two_sequences(), values)
    seen = figures(two_sequences(), values, score_penalty=0.1, language_model_coefficient=0.5)
    assert seen["loss"] == pytest.approx(plain["loss"] + 0.1 * 5.25 / 3 + 0.5 * 0.25)
    assert seen["rm/language_loss"] == pytest.approx(0.25)


def test_a_minibatch_without_labels_has_no_loss() -> None:
    batch = labelled(two_sequences(), [NAN] * 7)
    assert figures(batch, torch.ones(7, dtype=torch.float64))["loss"] == 0


def test_only_labelled_tokens_have_gradients() -> None:
    batch = two_sequences()
    values = torch.zeros(7, dtype=torch.float64, requires_grad=True)
    objective = RewardModelAlgorithm(spec.RewardModelSpec(objective=STEPS)).score_objective(("score",))
    objective.prepare(batch)
    objective.loss(ModelOutputs(values=values), batch).loss.backward()  # type: ignore[no-untyped-call]
    assert values.grad is not None
    expected = [0, -0.5 / 3, 0, 0.5 / 3, 0, 0, -0.5 / 3]
    assert values.grad.tolist() == pytest.approx(expected)


def test_several_outputs_are_refused() -> None:
    with pytest.raises(ValueError, match="the model gives 2 scores; a step has one"):
        figures(two_sequences(), torch.zeros(7, 2))
