"""XPO: loss and gradient against the published formula, token by token, ties, and minibatches."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from kubealign.spec import algorithms as spec
from kubealign_services.algorithms.online.xpo import XPOAlgorithm
from kubealign_services.batch.auxiliary_sequences import drop_auxiliary
from kubealign_services.batch.packed import Batch
from support.batches import random_batch, slow_spans, stand_in
from support.gradient_splits import check_gradient_of_microbatches

WEIGHTS = torch.tensor([0.3, -0.2, 0.4], dtype=torch.float64)
GROUPS = [0, 0, 1, 1, 2, 2, 3, 3]
#: The policy's response to each prompt comes first: it is better, worse, equal, better.
REWARDS = [2.0, 1.0, 0.5, 1.5, 1.0, 1.0, 4.0, 0.0]
BETA, ALPHA = 0.3, 0.07
SIGMOID, IPO = spec.PreferenceLoss.SIGMOID, spec.PreferenceLoss.IPO


def sampled(rewards: list[float] | None = None) -> Batch:
    """Return samples as the driver assembles them: those of the reference are auxiliary, of no version."""
    batch = random_batch([3, 1, 4, 2, 2, 5, 1, 3], GROUPS, seed=5)
    batch.sequence_columns["rewards"] = torch.tensor(rewards or REWARDS, dtype=torch.float64)
    batch.sequence_columns["companion"] = torch.tensor([0, 1] * 4, dtype=torch.uint8)
    batch.token_columns["weight_version"] = torch.tensor([3, -1])[batch.sequence_of_token % 2]
    batch.scalars["version"] = 3.0
    del batch.token_columns["old_logprobs"]
    return batch


def algorithm(**fields: Any) -> XPOAlgorithm:
    return XPOAlgorithm(spec.XPOSpec(beta=BETA, **{"alpha": ALPHA} | fields))


def trained(batch: Batch, **fields: Any) -> tuple[Batch, Any, dict[str, float]]:
    """Return the batch that the losses see, the prepared objective and the metrics of the advantages."""
    method = algorithm(**fields)
    metrics = method.advantages(batch, {})
    batch = drop_auxiliary(batch)
    objective = method.policy_objective()
    objective.prepare(batch)
    return batch, objective, metrics


def slow_loss(
    batch: Batch, logprobs: Tensor, rewards: list[float], loss_type: spec.PreferenceLoss, alpha: float
) -> Tensor:
    """Return the loss prompt by prompt and token by token.

    As TRL's former xpo_trainer.py: -F.logsigmoid(beta * logits), or (logits - 1 / (2 * beta)) ** 2, plus
    alpha times the sum of the log-probabilities of the reference's response; then the mean. Unlike there, the
    logits of IPO are of means over tokens, and two responses of equal rewards have the second term only.
    """
    reference = batch.token("reference_logprobs")
    spans = slow_spans(batch)
    total = torch.zeros((), dtype=torch.float64)
    for y in range(0, len(spans), 2):
        for token in spans[y + 1]:
            total = total + alpha * logprobs[token]
        if rewards[y] == rewards[y + 1]:
            continue
        chosen, rejected = (y, y + 1) if rewards[y] > rewards[y + 1] else (y + 1, y)
        logits = torch.zeros((), dtype=torch.float64)
        for sample, sign in ((chosen, 1), (rejected, -1)):
            length = 1 if loss_type is SIGMOID else len(spans[sample])
            for token in spans[sample]:
                logits = logits + sign * (logprobs[token] - reference[token]) / length
        if loss_type is SIGMOID:
            total = total - torch.log(1 / (1 + torch.exp(-BETA * logits)))
        else:
            total = total + (logits - 1 / (2 * BETA)) ** 2
    return total / (len(spans) // 2)


@pytest.mark.parametrize("alpha", [0.0, ALPHA])
@pytest.mark.parametrize("loss_type", [SIGMOID, IPO])
def test_value_and_gradient_equal_the_published_formula(loss_type: spec.PreferenceLoss, alpha: float) -> None:
    weights = WEIGHTS.clone().requires_grad_()
    logprobs = stand_in(sampled(), weights).logprobs
    assert logprobs is not None
    expected = slow_loss(sampled(), logprobs, REWARDS, loss_type, alpha)
    (expected_gradient,) = torch.autograd.grad(expected, weights)
    batch, objective, _ = trained(sampled(), loss_type=loss_type, alpha=alpha)
    terms = objective.loss(stand_in(batch, weights), batch)
    (gradient,) = torch.autograd.grad(terms.loss, weights)
    assert float(terms.loss.detach()) == pytest.approx(float(expected.detach()), abs=1e-9)
    torch.testing.assert_close(gradient, expected_gradient, atol=1e-9, rtol=1e-9)
    assert gradient.abs().max() > 1e-3


@pytest.mark.parametrize("loss_type", [SIGMOID, IPO])
def test_without_a_pair_the_bonus_is_left(loss_type: spec.PreferenceLoss) -> None:
    weights = WEIGHTS.clone().requires_grad_()
    batch, objective, metrics = trained(sampled([1.0] * 8), loss_type=loss_type)
    assert len(batch) == 8
    assert (metrics["reward/constant_groups"], metrics["preference/win_rate"]) == (1.0, 0.5)
    assert "preference/chosen_score" not in metrics
    logprobs = stand_in(batch, weights).logprobs
    assert logprobs is not None
    expected = slow_loss(batch, logprobs, [1.0] * 8, loss_type, ALPHA)
    (expected_gradient,) = torch.autograd.grad(expected, weights)
    terms = objective.loss(stand_in(batch, weights), batch)
    (gradient,) = torch.autograd.grad(terms.loss, weights)
    assert float(terms.loss.detach()) == pytest.approx(float(expected.detach()), abs=1e-12)
    torch.testing.assert_close(gradient, expected_gradient, atol=1e-12, rtol=1e-9)
    assert gradient.any()
    assert all(math.isfinite(float(value)) for value in (terms.sums | terms.maxima).values())


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("microbatch_tokens", [1, 12, 1000])
def test_gradient_does_not_depend_on_microbatches_and_ranks(ranks: int, microbatch_tokens: int) -> None:
    batch, objective, _ = trained(sampled())
    check_gradient_of_microbatches(batch, objective, WEIGHTS, microbatch_tokens, ranks)


def test_each_minibatch_has_the_mean_over_its_own_prompts() -> None:
    method, batch = algorithm(minibatch_sequences=4, prompts_per_step=4), sampled()
    batch.token_columns["old_logprobs"] = batch.token("behaviour_logprobs")
    method.advantages(batch, {})
    batch = drop_auxiliary(batch)
    for first in (0, 4):
        minibatch = batch.select(range(first, first + 4))
        objective = method.policy_objective()
        objective.prepare(minibatch)
        logprobs = stand_in(minibatch, WEIGHTS).logprobs
        assert logprobs is not None
        expected = slow_loss(minibatch, logprobs, REWARDS[first : first + 4], SIGMOID, ALPHA)
        loss = objective.loss(stand_in(minibatch, WEIGHTS), minibatch).loss
        assert float(loss) == pytest.approx(float(expected), abs=1e-9)


def test_metrics_tell_the_policy_from_the_reference() -> None:
    batch, objective, metrics = trained(sampled())
    assert batch.sequence("preference").tolist() == [1, -1, -1, 1, 0, 0, 1, -1]
    assert batch.sequence("from_reference").tolist() == [0, 1] * 4
    assert "companion" not in batch.sequence_columns
    spans = slow_spans(batch)
    engine, reference = batch.token("engine_logprobs"), batch.token("reference_logprobs")
    gaps = [abs(float(engine[t] - reference[t])) for span in spans[1::2] for t in span]
    assert metrics == {
        "reward/constant_groups": 0.25,
        "kl/coefficient": BETA,
        "preference/chosen_score": pytest.approx((2.0 + 1.5 + 4.0) / 3),
        "preference/rejected_score": pytest.approx((1.0 + 0.5 + 0.0) / 3),
        "preference/win_rate": (1 + 0 + 0.5 + 1) / 4,
        "preference/reference_score": pytest.approx((1.0 + 1.5 + 1.0 + 0.0) / 4),
        "rollout/reference_gap_mean": pytest.approx(sum(gaps) / len(gaps)),
    }
    terms = objective.loss(stand_in(batch, WEIGHTS), batch)
    logprobs = stand_in(batch, WEIGHTS).logprobs
    assert logprobs is not None
    ratios = [sum(float(logprobs[t] - reference[t]) for t in span) for span in spans]
    margins = [BETA * (ratios[c] - ratios[r]) for c, r in ((0, 1), (3, 2), (6, 7))]
    assert float(terms.sums["preference/margin"]) == pytest.approx(sum(margins) / 3, abs=1e-9)
    # The divergence and the gap to the engine are those of the policy's own responses.
    assert float(terms.sums["kl/reference_sequence"]) == pytest.approx(sum(ratios[::2]) / 4, abs=1e-9)
    gaps = [abs(float(logprobs[t] - engine[t])) for span in spans[::2] for t in span]
    assert float(terms.sums["rollout/logprob_gap_mean"]) == pytest.approx(sum(gaps) / len(gaps), abs=1e-9)
    bonus = sum(float(logprobs[t]) for span in spans[1::2] for t in span) / 4
    assert float(terms.sums["preference/reference_sample_logprob"]) == pytest.approx(bonus, abs=1e-9)


def test_before_a_step_of_several_updates_the_divergence_is_that_of_the_policys_responses() -> None:
    batch = sampled()
    batch.token_columns["old_logprobs"] = batch.token("behaviour_logprobs") + 0.1
    gaps = batch.token("old_logprobs") - batch.token("reference_logprobs")
    expected = sum(float(gaps[span].sum()) for span in slow_spans(batch)[::2]) / 4
    _, _, metrics = trained(batch, epochs_per_step=2)
    assert metrics["kl/reference_sequence"] == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("flags", [[0] * 8, [1, 0] * 4, [0, 1, 0, 1, 0, 1, 1, 0]])
def test_samples_of_another_order_are_rejected(flags: list[int]) -> None:
    batch = sampled()
    batch.sequence_columns["companion"] = torch.tensor(flags, dtype=torch.uint8)
    with pytest.raises(ValueError, match=r"of 8 sequences [04] are the reference's"):
        algorithm().advantages(batch, {})


def test_each_prompt_has_two_sequences() -> None:
    entry = spec.XPOSpec(prompts_per_step=6, minibatch_sequences=4, epochs_per_step=2)
    assert (entry.sequences_per_step, entry.trained_sequences_per_step, entry.updates_per_step) == (12, 12, 6)
