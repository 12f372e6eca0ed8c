"""Clip-Cov and KL-Cov, against verl's formulas (core_algos.py) written as loops over a minibatch's tokens."""

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from kubealign.spec import algorithms as spec
from kubealign_services.algorithms.contract import ModelOutputs
from kubealign_services.algorithms.factory import make_algorithm
from kubealign_services.algorithms.losses.policy_objective import PolicyObjective
from kubealign_services.batch.packed import Batch, pack

NO_KL = spec.KL(fixed=spec.FixedKL(coefficient=0))
# Four responses of three tokens; the advantages differ from response to response.
OLD = [-0.1, -2.0, -3.5, -0.2, -0.4, -5.0, -1.0, -0.3, -2.5, -0.1, -0.1, -4.0]
MOVES = [0.1, -0.3, 0.25, 0.05, 0.4, -0.2, -0.1, 0.3, 0.15, -0.5, 0.02, 0.6]
ADVANTAGES = [1.5, 1.5, 1.5, -0.5, -0.5, -0.5, -2.0, -2.0, -2.0, 1.0, 1.0, 1.0]


def minibatch() -> Batch:
    """Responses after a prompt of one token."""
    result = pack([[7, 8, 9, 10]] * 4, [str(i) for i in range(4)])
    response = result.positions > 0
    result.token_columns["loss_mask"] = response.to(torch.uint8)
    for name, values in (("advantages", ADVANTAGES), ("old_logprobs", OLD)):
        column = torch.zeros(16, dtype=torch.float64)
        column[response] = torch.tensor(values, dtype=torch.float64)
        result.token_columns[name] = column
    result.sequence_columns["truncated"] = torch.zeros(4, dtype=torch.uint8)
    return result


def covariances() -> list[float]:
    """Return (A - mean A) (log p - mean log p) over the whole minibatch, before the policy moves."""
    mean_advantage, mean_logprob = sum(ADVANTAGES) / 12, sum(OLD) / 12
    return [(a - mean_advantage) * (p - mean_logprob) for a, p in zip(ADVANTAGES, OLD, strict=True)]


def loss_and_gradient(entry: spec.PPOSpec, split: list[list[int]]) -> tuple[float, Tensor, float]:
    """Return the loss, its gradient by the response tokens' log-probabilities, and the selected share."""
    algorithm: Any = make_algorithm(spec.Algorithm(ppo=entry))
    objective = PolicyObjective(entry, algorithm.surrogate())
    batch = minibatch()
    objective.prepare(batch)
    logprobs = batch.token("old_logprobs").clone()
    response = batch.token("loss_mask").bool()
    logprobs[response] += torch.tensor(MOVES, dtype=torch.float64)
    logprobs.requires_grad_()
    loss, share = torch.zeros((), dtype=torch.float64), 0.0
    for sequences in split:
        part = batch.select(sequences)
        tokens = torch.cat([torch.arange(4 * s, 4 * s + 4) for s in sequences])
        outputs = ModelOutputs(logprobs=logprobs[tokens], entropy=torch.zeros(len(tokens)))
        terms = objective.loss(outputs, part)
        loss = loss + terms.loss
        share += float(terms.sums["policy/high_covariance_fraction"])
    (gradient,) = torch.autograd.grad(loss, logprobs)
    return float(loss.detach()), gradient[response], share


def expected_kl_cov(count: int, coefficient: float) -> tuple[float, Tensor]:
    """compute_policy_loss_kl_cov: topk of the covariances; -A r + coefficient |log p - log p_old| there."""
    values = covariances()
    largest = sorted(range(12), key=lambda token: -values[token])[:count]
    moves = torch.tensor(MOVES, dtype=torch.float64, requires_grad=True)
    losses = []
    for token, move in enumerate(moves.unbind()):
        loss = -ADVANTAGES[token] * move.exp()
        losses.append(loss + coefficient * move.abs() if token in largest else loss)
    mean = torch.stack(losses).mean()
    (gradient,) = torch.autograd.grad(mean, moves)
    return float(mean.detach()), gradient


def expected_clip_cov(selected: tuple[int, ...]) -> tuple[float, Tensor]:
    """compute_policy_loss_clip_cov: max(-A r, -A clip(r)), and 0 at the selected tokens."""
    moves = torch.tensor(MOVES, dtype=torch.float64, requires_grad=True)
    losses = []
    for token, move in enumerate(moves.unbind()):
        ratio, advantage = move.exp(), ADVANTAGES[token]
        loss = torch.maximum(-advantage * ratio, -advantage * ratio.clamp(0.8, 1.2))
        losses.append(loss * 0 if token in selected else loss)
    mean = torch.stack(losses).mean()
    (gradient,) = torch.autograd.grad(mean, moves)
    return float(mean.detach()), gradient


SPLITS = [[[0, 1, 2, 3]], [[2], [0, 3], [1]], [[0], [1], [2], [3]]]


@pytest.mark.parametrize("split", SPLITS, ids=str)
@pytest.mark.parametrize(("fraction", "count"), [(0.3, 3), (0.0002, 1)])
def test_kl_cov_penalises_the_highest_covariances_of_the_minibatch(
    split: list[list[int]], fraction: float, count: int
) -> None:
    entry = spec.PPOSpec(
        kl=NO_KL, trust_region=spec.TrustRegion(kl_cov=spec.KLCov(fraction=fraction, coefficient=0.7))
    )
    loss, gradient, share = loss_and_gradient(entry, split)
    expected, expected_gradient = expected_kl_cov(count, 0.7)
    assert loss == pytest.approx(expected, abs=1e-12)
    torch.testing.assert_close(gradient, expected_gradient, atol=1e-12, rtol=0)
    assert share == pytest.approx(count / 12)


@pytest.mark.parametrize("split", SPLITS, ids=str)
def test_clip_cov_leaves_out_some_tokens_between_the_bounds(split: list[list[int]]) -> None:
    """verl draws them with randperm, so the result equals one of the possible draws."""
    low, high = 0.5, 2.0
    candidates = [token for token, value in enumerate(covariances()) if low < value < high]
    assert len(candidates) > 2 and max(covariances()) > high
    entry = spec.PPOSpec(
        kl=NO_KL,
        trust_region=spec.TrustRegion(clip_cov=spec.ClipCov(fraction=0.2, low=low, high=high)),
    )
    loss, gradient, share = loss_and_gradient(entry, split)
    assert share == pytest.approx(2 / 12)
    # 0.2 of 12 tokens is 2, rounded down.
    possible = [expected_clip_cov(draw) for draw in itertools.combinations(candidates, 2)]
    fitting = [g for value, g in possible if value == pytest.approx(loss, abs=1e-12)]
    assert any(torch.allclose(gradient, g, atol=1e-12, rtol=0) for g in fitting)


def test_clip_cov_draws_the_same_tokens_for_the_same_minibatch_and_others_for_another() -> None:
    algorithm: Any = make_algorithm(
        spec.Algorithm(
            ppo=spec.PPOSpec(
                trust_region=spec.TrustRegion(clip_cov=spec.ClipCov(fraction=0.1, low=0.0, high=100.0))
            )
        )
    )
    surrogate = algorithm.surrogate()

    def drawn(first: int) -> tuple[bool, ...]:
        batch = minibatch()
        batch.sample_ids = [str(first + i) for i in range(4)]
        return tuple(surrogate.select(batch, batch.token("loss_mask").bool()).tolist())

    draws = [drawn(first) for first in range(0, 40, 4)]
    assert draws == [drawn(first) for first in range(0, 40, 4)]
    assert all(sum(draw) == 1 for draw in draws) and len(set(draws)) > 2


def test_without_a_covariance_between_the_bounds_clip_cov_is_the_clip() -> None:
    entry = spec.PPOSpec(
        kl=NO_KL, trust_region=spec.TrustRegion(clip_cov=spec.ClipCov(low=100.0, high=200.0))
    )
    loss, gradient, share = loss_and_gradient(entry, [[0, 1, 2, 3]])
    expected, expected_gradient = expected_clip_cov(())
    assert loss == pytest.approx(expected, abs=1e-12) and share == 0
    torch.testing.assert_close(gradient, expected_gradient, atol=1e-12, rtol=0)


@pytest.mark.parametrize(("member", "needed"), [("clip_cov", True), ("kl_cov", True), ("dppo", False)])
def test_the_covariance_needs_log_probabilities_before_the_step(member: str, needed: bool) -> None:
    """Also with one update per step, whose own pass comes too late to compare a whole minibatch."""
    region = spec.TrustRegion.model_validate({member: {}})
    entry = spec.GRPOSpec(samples_per_prompt=4, kl=NO_KL, trust_region=region)
    assert entry.updates_per_step == 1
    assert make_algorithm(spec.Algorithm(grpo=entry)).needs_old_logprobs is needed
