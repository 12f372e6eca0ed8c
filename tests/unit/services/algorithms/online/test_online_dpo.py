"""Online DPO: loss and gradient against the published formulas, token by token, and steps without pairs."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from kubealign.spec import algorithms as spec
from kubealign_services.algorithms.contract import LossTerms, ModelOutputs
from kubealign_services.algorithms.online.online_dpo import OnlineDPOAlgorithm
from kubealign_services.batch.auxiliary_sequences import drop_auxiliary
from kubealign_services.batch.packed import Batch
from kubealign_services.batch.reward_columns import add_scores
from support.batches import random_batch, slow_spans, stand_in
from support.gradient_splits import check_gradient_of_microbatches

WEIGHTS = torch.tensor([0.3, -0.2, 0.4], dtype=torch.float64)
GROUPS = [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
#: The third group has no pair; the best comes first, last and second.
REWARDS = [2.0, 1.0, 0.0, 1.0, 0.5, 1.5, 1.0, 1.0, 1.0, 0.0, 4.0, 3.0]
#: (chosen, rejected), read off the rewards.
PAIRS = [(0, 2), (5, 4), (10, 9)]
BETA = 0.3


def sampled(rewards: list[float] | None = None) -> Batch:
    batch = random_batch([3, 1, 4, 2, 2, 5, 1, 3, 2, 4, 1, 3], GROUPS, seed=5)
    batch.sequence_columns["rewards"] = torch.tensor(rewards or REWARDS, dtype=torch.float64)
    del batch.token_columns["old_logprobs"]
    return batch


def trained(batch: Batch, **fields: Any) -> tuple[Batch, Any, dict[str, float]]:
    """Return the batch that the losses see, the prepared objective and the metrics of the advantages."""
    algorithm = OnlineDPOAlgorithm(spec.OnlineDPOSpec(samples_per_prompt=3, beta=BETA, **fields))
    metrics = algorithm.advantages(batch, {})
    batch = drop_auxiliary(batch)
    objective = algorithm.policy_objective()
    objective.prepare(batch)
    return batch, objective, metrics


def trl_sigmoid(chosen: list[Tensor], rejected: list[Tensor], lengths: tuple[int, int]) -> Tensor:
    """TRL, online_dpo_trainer.py, training_step: losses = -F.logsigmoid(self.beta * logits)."""
    logits = (chosen[0] - rejected[0]) - (chosen[1] - rejected[1])
    return -torch.log(1 / (1 + torch.exp(-BETA * logits)))


def ipo(chosen: list[Tensor], rejected: list[Tensor], lengths: tuple[int, int]) -> Tensor:
    """TRL's (logits - 1 / (2 * self.beta)) ** 2, of means over tokens as in TRL's DPOTrainer."""
    logits = (chosen[0] - chosen[1]) / lengths[0] - (rejected[0] - rejected[1]) / lengths[1]
    return (logits - 1 / (2 * BETA)) ** 2


@pytest.mark.parametrize(
    ("loss_type", "formula"), [(spec.PreferenceLoss.SIGMOID, trl_sigmoid), (spec.PreferenceLoss.IPO, ipo)]
)
def test_value_and_gradient_equal_the_published_formula(loss_type: spec.PreferenceLoss, formula: Any) -> None:
    batch_of_all = sampled()
    spans, reference = slow_spans(batch_of_all), batch_of_all.token("reference_logprobs")
    weights = WEIGHTS.clone().requires_grad_()
    logprobs = stand_in(batch_of_all, weights).logprobs
    assert logprobs is not None

    def sums(sample: int) -> list[Tensor]:
        totals = [torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)]
        for token in spans[sample]:
            totals[0] = totals[0] + logprobs[token]
            totals[1] = totals[1] + reference[token]
        return totals

    expected = torch.zeros((), dtype=torch.float64)
    for chosen, rejected in PAIRS:
        lengths = (len(spans[chosen]), len(spans[rejected]))
        expected = expected + formula(sums(chosen), sums(rejected), lengths) / len(PAIRS)
    (expected_gradient,) = torch.autograd.grad(expected, weights)

    batch, objective, _ = trained(sampled(), loss_type=loss_type)
    terms = objective.loss(stand_in(batch, weights), batch)
    (gradient,) = torch.autograd.grad(terms.loss, weights)
    assert float(terms.loss.detach()) == pytest.approx(float(expected.detach()), abs=1e-9)
    torch.testing.assert_close(gradient, expected_gradient, atol=1e-9, rtol=1e-9)
    assert gradient.abs().max() > 1e-3


def test_pairs_and_their_metrics() -> None:
    batch, objective, metrics = trained(sampled())
    assert batch.sample_ids == ["0", "2", "4", "5", "6", "7", "9", "10"]
    assert batch.sequence("preference").tolist() == [1, -1, -1, 1, 0, 0, -1, 1]
    assert "companion" not in batch.sequence_columns
    assert metrics == {
        "reward/constant_groups": 0.25,
        "kl/coefficient": BETA,
        "preference/chosen_score": pytest.approx((2.0 + 1.5 + 4.0) / 3),
        "preference/rejected_score": pytest.approx((0.0 + 0.5 + 0.0) / 3),
    }
    terms = objective.loss(stand_in(batch, WEIGHTS), batch)
    logprobs = stand_in(batch, WEIGHTS).logprobs
    assert logprobs is not None
    # TRL's objective/kl, over the sequences that are trained on; TRL includes padding.
    ratios = [
        sum(float(logprobs[t] - batch.token("reference_logprobs")[t]) for t in span)
        for span in slow_spans(batch)
    ]
    assert float(terms.sums["kl/reference_sequence"]) == pytest.approx(sum(ratios) / len(batch), abs=1e-9)
    assert float(terms.sums["rollout/logprob_gap_mean"]) > 0
    margins = [BETA * (ratios[c] - ratios[r]) for c, r in ((0, 1), (3, 2), (7, 6))]
    assert float(terms.sums["preference/margin"]) == pytest.approx(sum(margins) / 3, abs=1e-9)


@pytest.mark.parametrize("ranks", [1, 2, 5])
@pytest.mark.parametrize("microbatch_tokens", [1, 12, 1000])
def test_gradient_does_not_depend_on_microbatches_and_ranks(ranks: int, microbatch_tokens: int) -> None:
    """Sum over all ranks, as the trainer adds the losses and the gradients of the planned passes."""
    batch, objective, _ = trained(sampled())
    check_gradient_of_microbatches(batch, objective, WEIGHTS, microbatch_tokens, ranks)


@pytest.mark.parametrize("loss_type", list(spec.PreferenceLoss))
def test_a_step_without_pairs_has_a_gradient_of_zero(loss_type: spec.PreferenceLoss) -> None:
    batch, objective, metrics = trained(sampled([1.0] * 12), loss_type=loss_type)
    assert len(batch) == 8
    assert metrics == {"reward/constant_groups": 1.0, "kl/coefficient": BETA}
    weights = WEIGHTS.clone().requires_grad_()
    terms: LossTerms = objective.loss(stand_in(batch, weights), batch)
    (gradient,) = torch.autograd.grad(terms.loss, weights)
    assert float(terms.loss.detach()) == 0 and not gradient.any()
    assert all(math.isfinite(float(value)) for value in (terms.sums | terms.maxima).values())


def test_the_overlong_penalty_can_turn_a_pair() -> None:
    """The better one of two responses, of 3 and 1 tokens at a limit of 5, loses 1.5 of its reward."""
    batch = random_batch([3, 1, 5, 5], [0, 0, 1, 1])
    batch.sequence_columns["rewards"] = torch.tensor([1.0, 0.5, 1.0, 0.0], dtype=torch.float64)
    batch, _, metrics = trained(batch, overlong=spec.OverlongPenalty(buffer_tokens=4, penalty=3.0))
    assert batch.sequence("preference").tolist() == [-1, 1, 1, -1]
    assert metrics["reward/overlong_penalty"] == pytest.approx((1.5 + 0 + 3 + 3) / 4)


def test_old_logprobs_are_needed_for_several_updates_only() -> None:
    def needs(**fields: Any) -> bool:
        return OnlineDPOAlgorithm(spec.OnlineDPOSpec(prompts_per_step=8, **fields)).needs_old_logprobs

    assert not needs() and not needs(minibatch_sequences=16) and not needs(max_staleness=2)
    assert needs(minibatch_sequences=8) and needs(epochs_per_step=2)


def test_with_old_logprobs_the_divergence_is_that_before_the_step() -> None:
    batch = sampled()
    batch.token_columns["old_logprobs"] = batch.token("behaviour_logprobs") + 0.1
    gaps = batch.token("old_logprobs") - batch.token("reference_logprobs")
    expected = sum(float(gaps[span].sum()) for span in slow_spans(batch)) / len(batch)
    batch, objective, metrics = trained(batch, epochs_per_step=2)
    assert metrics["kl/reference_sequence"] == pytest.approx(expected, abs=1e-9)
    terms = objective.loss(stand_in(batch, WEIGHTS), batch)
    assert not {"kl/reference", "rollout/logprob_gap_mean"} & terms.sums.keys()


def test_minibatches_are_whole_pairs() -> None:
    entry = spec.OnlineDPOSpec(
        prompts_per_step=6, samples_per_prompt=4, minibatch_sequences=4, epochs_per_step=2
    )
    assert (entry.sequences_per_step, entry.trained_sequences_per_step, entry.updates_per_step) == (24, 12, 6)
    for size, nearest in ((3, 2), (24, 12), (8, 6)):
        text = rf"must be even and divide 2 x promptsPerStep \(2 x 6 = 12\), such as {nearest}\b"
        with pytest.raises(ValueError, match=text):
            spec.OnlineDPOSpec(prompts_per_step=6, minibatch_sequences=size)


def test_missing_output_is_named() -> None:
    batch, objective, _ = trained(sampled())
    with pytest.raises(ValueError, match="the objective reads logprobs"):
        objective.loss(ModelOutputs(), batch)


def test_samples_to_which_no_reward_applies_are_in_no_pair() -> None:
    """Their rewards are 0, which is the lowest of the first group and the highest of the second."""
    batch = sampled([2.0, 1.0, 0.0, -1.0, -0.5, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0])
    rewarded = [2.0, 1.0, None, -1.0, -0.5, None, 1.0, 1.0, None, 0.0, None, None]
    add_scores(batch, "exact", rewarded)
    OnlineDPOAlgorithm(spec.OnlineDPOSpec(samples_per_prompt=3)).advantages(batch, {})
    assert batch.sequence("preference").tolist() == [1, -1, 0, -1, 1, 0, 0, 0, 0, 0, 0, 0]
