"""Policy gradient of the tokens with the highest entropy only, against TRL's get_high_entropy_mask."""

from typing import Any

import pytest
import torch
from torch import Tensor

from kubealign.spec import algorithms as spec
from kubealign_services.algorithms.contract import ModelOutputs, outputs_before_step
from kubealign_services.algorithms.factory import make_algorithm
from kubealign_services.algorithms.losses.policy_objective import PolicyObjective
from kubealign_services.algorithms.losses.surrogate import ClippedRatio
from kubealign_services.algorithms.losses.top_entropy import entropy_threshold
from kubealign_services.batch.packed import Batch, pack

NO_KL = spec.KL(fixed=spec.FixedKL(coefficient=0))
# Three responses of four, two and four tokens.
LENGTHS = [4, 2, 4]
ENTROPIES = [0.1, 2.0, 0.3, 0.0, 1.2, 0.2, 0.9, 0.05, 3.0, 0.4]
ADVANTAGES = [1.0, -2.0, 0.5]


def minibatch(entropies: list[float]) -> Batch:
    """Responses after a prompt of one token, whose entropy is the highest of all and does not count."""
    result = pack([[7] * (1 + length) for length in LENGTHS], ["0", "1", "2"])
    response = result.positions > 0
    result.token_columns["loss_mask"] = response.to(torch.uint8)
    result.token_columns["old_entropy"] = torch.full((13,), 99.0, dtype=torch.float64)
    result.token_columns["old_entropy"][response] = torch.tensor(entropies, dtype=torch.float64)
    result.token_columns["old_logprobs"] = torch.full((13,), -1.0, dtype=torch.float64)
    result.token_columns["advantages"] = torch.tensor(ADVANTAGES, dtype=torch.float64)[
        result.sequence_of_token
    ]
    result.token_columns["reference_logprobs"] = torch.full((13,), -1.3, dtype=torch.float64)
    result.sequence_columns["truncated"] = torch.zeros(3, dtype=torch.uint8)
    return result


def loss_of(entry: spec.PPOSpec, logprobs: Tensor, split: list[list[int]]) -> tuple[Tensor, dict[str, float]]:
    batch = minibatch(ENTROPIES)
    objective = PolicyObjective(entry, ClippedRatio(entry.clip))
    objective.prepare(batch)
    offsets = batch.cu_seqlens.tolist()
    total = torch.zeros((), dtype=torch.float64)
    sums: dict[str, float] = {}
    for sequences in split:
        tokens = torch.cat([torch.arange(offsets[s], offsets[s + 1]) for s in sequences])
        outputs = ModelOutputs(logprobs=logprobs[tokens], entropy=torch.zeros(len(tokens)))
        terms = objective.loss(outputs, batch.select(sequences))
        total = total + terms.loss
        for name, value in terms.sums.items():
            sums[name] = sums.get(name, 0.0) + float(value)
    return total, sums


@pytest.mark.parametrize("split", [[[0, 1, 2]], [[2], [1], [0]]], ids=str)
@pytest.mark.parametrize(("fraction", "count"), [(0.2, 2), (0.5, 5), (0.99, 9)])
def test_only_tokens_of_high_entropy_have_a_gradient(
    fraction: float, count: int, split: list[list[int]]
) -> None:
    """TRL: per_token_loss * mask, divided by all tokens."""
    threshold = float(torch.quantile(torch.tensor(ENTROPIES, dtype=torch.float64), 1 - fraction))
    move = torch.linspace(-0.1, 0.1, 13, dtype=torch.float64)
    logprobs = (move - 1.0).requires_grad_()
    entry = spec.PPOSpec(kl=NO_KL, top_entropy_fraction=fraction)
    loss, sums = loss_of(entry, logprobs, split)
    (gradient,) = torch.autograd.grad(loss, logprobs)

    response = minibatch(ENTROPIES).token("loss_mask").bool().nonzero().flatten().tolist()
    advantages = [a for a, length in zip(ADVANTAGES, LENGTHS, strict=True) for _ in range(length)]
    expected_gradient, expected = torch.zeros(13, dtype=torch.float64), 0.0
    for token, entropy, advantage in zip(response, ENTROPIES, advantages, strict=True):
        if entropy >= threshold:
            expected -= advantage * float(move[token].exp()) / 10
            expected_gradient[token] = -advantage * float(move[token].exp()) / 10
    assert (expected_gradient != 0).sum() == count
    assert float(loss.detach()) == pytest.approx(expected, abs=1e-12)
    torch.testing.assert_close(gradient, expected_gradient, atol=1e-12, rtol=0)
    assert sums["policy/high_entropy_fraction"] == pytest.approx(count / 10)
    assert sums["policy/entropy_threshold"] == pytest.approx(sorted(ENTROPIES)[-count])


def test_the_kl_penalty_keeps_all_tokens() -> None:
    """TRL adds the KL term after the mask."""
    kl = spec.KL(
        placement=spec.KLPlacement.LOSS, estimator=spec.KLEstimator.K2, fixed=spec.FixedKL(coefficient=0.5)
    )
    logprobs = torch.full((13,), -1.0, dtype=torch.float64, requires_grad=True)
    entry = spec.PPOSpec(kl=kl, top_entropy_fraction=0.2)
    loss, _ = loss_of(entry, logprobs, [[0, 1, 2]])
    (gradient,) = torch.autograd.grad(loss, logprobs)
    # K2 is d^2 / 2 with d = 0.3, so its part of the gradient is 0.5 * 0.3 / 10.
    assert gradient[1].item() == pytest.approx(0.015)
    assert gradient[2].item() == pytest.approx(0.015 - 0.1)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("fraction", [0.01, 0.2, 0.37, 0.8, 0.999])
def test_the_same_tokens_are_selected_as_by_an_interpolated_quantile(fraction: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    entropies = torch.rand(10, generator=generator, dtype=torch.float64)
    batch = minibatch(entropies.tolist())
    threshold = entropy_threshold(batch, batch.token("loss_mask").bool(), fraction)
    expected = entropies >= torch.quantile(entropies, 1 - fraction)
    assert torch.equal(entropies >= threshold, expected)


def test_a_whole_rank_is_not_missed_by_rounding() -> None:
    """(1 - 1/3) 9 is 6, in floating point 6.000000000000001: the tokens of ranks 6 to 9 are selected."""
    batch = minibatch([float(rank) for rank in range(10)])
    assert entropy_threshold(batch, batch.token("loss_mask").bool(), 1 / 3) == 6


def test_a_minibatch_without_tokens_has_no_threshold() -> None:
    batch = minibatch(ENTROPIES)
    assert entropy_threshold(batch, torch.zeros(13, dtype=torch.bool), 0.2) == 0.0


def test_the_entropies_are_requested_before_the_step() -> None:
    def outputs(**fields: Any) -> tuple[str, ...]:
        entry = spec.GRPOSpec(samples_per_prompt=4, kl=NO_KL, **fields)
        return outputs_before_step(make_algorithm(spec.Algorithm(grpo=entry)))

    assert outputs() == ()
    assert outputs(epochs_per_step=2) == ("logprobs",)
    assert outputs(top_entropy_fraction=0.2) == ("logprobs", "entropy")


def test_a_ratio_of_a_whole_response_is_refused() -> None:
    with pytest.raises(ValueError, match="choose another trustRegion"):
        spec.GRPOSpec(top_entropy_fraction=0.2, trust_region=spec.TrustRegion(gmpo=spec.GMPO()))
