"""Preference algorithms: by hand, and against formulas written out pair by pair and token by token."""

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from kubealign.spec import algorithms as spec
from kubealign_services.algorithms.contract import LossTerms, ModelOutputs
from kubealign_services.algorithms.offline.dpo import DPOAlgorithm
from kubealign_services.algorithms.offline.ipo import IPOAlgorithm
from kubealign_services.algorithms.offline.kto import KTOAlgorithm
from kubealign_services.algorithms.offline.orpo import ORPOAlgorithm, log_odds
from kubealign_services.algorithms.offline.rpo import RPOAlgorithm
from kubealign_services.algorithms.offline.simpo import SimPOAlgorithm
from kubealign_services.batch.auxiliary_sequences import drop_auxiliary
from kubealign_services.batch.packed import Batch, pack
from support.batches import random_batch

DISTANCE = spec.RPODistance
REDUCTION = spec.LikelihoodReduction


def sigmoid(x: Tensor) -> Tensor:
    return 1 / (1 + torch.exp(-x))


def log_sigmoid(x: Tensor) -> Tensor:
    return torch.log(sigmoid(x))


class Side:
    """One response, token by token: log-probabilities of the policy and the reference, and their sums."""

    def __init__(self, policy: Tensor, reference: Tensor, rating: float) -> None:
        self.policy, self.reference, self.rating = policy, reference, rating
        self.length = len(policy)
        self.sum = torch.zeros((), dtype=torch.float64)
        self.ratio = torch.zeros((), dtype=torch.float64)
        for p, q in zip(policy, reference, strict=True):
            self.sum = self.sum + p
            self.ratio = self.ratio + (p - q)


#: The published formulas, as TRL and NeMo-Aligner have them, of (chosen, rejected).
Formula = Callable[[Side, Side], Tensor]


def dpo(c: Side, r: Side) -> Tensor:
    return -log_sigmoid(0.3 * ((c.sum - r.sum) - (c.reference.sum() - r.reference.sum())))


def cdpo(c: Side, r: Side) -> Tensor:
    logits = 0.3 * (c.ratio - r.ratio)
    return -log_sigmoid(logits) * (1 - 0.1) - log_sigmoid(-logits) * 0.1 + 0.7 * -c.sum / c.length


def ipo(c: Side, r: Side) -> Tensor:
    logits = (c.policy.mean() - r.policy.mean()) - (c.reference.mean() - r.reference.mean())
    return (logits - 1 / (2 * 0.3)) ** 2


def simpo(c: Side, r: Side) -> Tensor:
    logits = c.policy.mean() - r.policy.mean() - 0.5 / 2.5
    return -log_sigmoid(2.5 * logits)


def orpo(c: Side, r: Side) -> Tensor:
    chosen, rejected = c.policy.mean(), r.policy.mean()
    log_odds_ratio = (chosen - rejected) - (
        torch.log(1 - torch.exp(chosen)) - torch.log(1 - torch.exp(rejected))
    )
    return -chosen - 0.2 * log_sigmoid(log_odds_ratio)


def rpo(distance: spec.RPODistance) -> Formula:
    def formula(c: Side, r: Side) -> Tensor:
        gap = 0.3 * (c.ratio - r.ratio)
        given = torch.tensor(0.5 * (c.rating - r.rating), dtype=torch.float64)
        p, q = sigmoid(given), sigmoid(gap)
        if distance is DISTANCE.BACKWARD_KL:
            return p * torch.log(p / q) + (1 - p) * torch.log((1 - p) / (1 - q))
        if distance is DISTANCE.FORWARD_KL:
            return q * torch.log(q / p) + (1 - q) * torch.log((1 - q) / (1 - p))
        return (gap - given) ** 2

    return formula


def rpo_imitating(c: Side, r: Side) -> Tensor:
    return rpo(DISTANCE.BACKWARD_KL)(c, r) - 0.7 * c.policy.sum()


METHODS: dict[str, tuple[Any, Formula]] = {
    "dpo": (DPOAlgorithm(spec.DPOSpec(beta=0.3)), dpo),
    "cdpo": (DPOAlgorithm(spec.DPOSpec(beta=0.3, label_smoothing=0.1, nll_coefficient=0.7)), cdpo),
    "ipo": (IPOAlgorithm(spec.IPOSpec(beta=0.3)), ipo),
    "simpo": (SimPOAlgorithm(spec.SimPOSpec(beta=2.5, margin=0.5)), simpo),
    "orpo": (ORPOAlgorithm(spec.ORPOSpec(coefficient=0.2)), orpo),
    **{
        f"rpo-{distance}": (
            RPOAlgorithm(spec.RPOSpec(beta=0.3, reward_scale=0.5, distance=distance)),
            rpo(distance),
        )
        for distance in DISTANCE
    },
    "rpo-imitating": (
        RPOAlgorithm(
            spec.RPOSpec(beta=0.3, reward_scale=0.5, nll_coefficient=0.7, nll_reduction=REDUCTION.SUM)
        ),
        rpo_imitating,
    ),
}


def rows(seed: int = 3) -> tuple[Batch, Tensor]:
    """Four pairs, and a policy's log-probabilities of their tokens, to be differentiated."""
    batch = random_batch([3, 1, 4, 2, 2, 5, 1, 3], [0] * 8, seed)
    ratings = torch.tensor([3.0, 1, 2, 2, 4, 0, 1, 2], dtype=torch.float64)
    batch.sequence_columns["rating"] = ratings
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(len(batch.tokens), dtype=torch.float64, generator=generator).abs()
    logprobs = (batch.token("reference_logprobs").abs() * -0.5 - noise - 0.01).requires_grad_()
    return batch, logprobs


def sides(batch: Batch, logprobs: Tensor) -> list[Side]:
    result = []
    for index, (start, end) in enumerate(itertools.pairwise(batch.cu_seqlens.tolist())):
        tokens = [t for t in range(start, end) if batch.token("loss_mask")[t]]
        rating = batch.sequence_columns.get("rating", torch.zeros(len(batch)))[index]
        result.append(Side(logprobs[tokens], batch.token("reference_logprobs")[tokens], float(rating)))
    return result


@pytest.mark.parametrize("name", list(METHODS))
def test_value_and_gradient_equal_the_published_formula(name: str) -> None:
    algorithm, formula = METHODS[name]
    batch, logprobs = rows()
    terms = measured(algorithm, batch, logprobs)
    each = sides(batch, logprobs)
    expected = sum(formula(c, r) for c, r in zip(each[0::2], each[1::2], strict=True)) / 4
    assert isinstance(expected, Tensor)
    assert float(terms.loss.detach()) == pytest.approx(float(expected.detach()), abs=1e-9)
    assert float(terms.sums["preference/loss"]) == pytest.approx(float(expected.detach()), abs=1e-9)
    (gradient,) = torch.autograd.grad(terms.loss, logprobs)
    (expected_gradient,) = torch.autograd.grad(expected, logprobs)
    torch.testing.assert_close(gradient, expected_gradient, atol=1e-9, rtol=1e-9)
    assert gradient.abs().max() > 1e-3


def measured(algorithm: Any, batch: Batch, logprobs: Tensor) -> LossTerms:
    objective = algorithm.policy_objective()
    objective.prepare(batch)
    terms: LossTerms = objective.loss(ModelOutputs(logprobs=logprobs), batch)
    return terms


def by_hand() -> tuple[Batch, Tensor]:
    """Two pairs. Log-ratios of the first: chosen 0.5 + 0.5 = 1, rejected -1. Of the second: chosen -0.5,
    rejected -0.25 - 0.25 = -0.5. Mean log-probabilities: chosen -1 and -2, rejected -2 and -1."""
    batch = pack([[1, 2, 3], [1, 2], [1, 2], [1, 2, 3]], ["0", "1", "2", "3"])
    batch.token_columns["loss_mask"] = torch.tensor([0, 1, 1, 0, 1, 0, 1, 0, 1, 1], dtype=torch.uint8)
    logprobs = torch.tensor([9, -1, -1, 9, -2, 9, -2, 9, -1, -1], dtype=torch.float64)
    reference = torch.tensor([9, -1.5, -1.5, 9, -1, 9, -1.5, 9, -0.75, -0.75], dtype=torch.float64)
    batch.token_columns["reference_logprobs"] = reference
    return batch, logprobs


def test_dpo_by_hand() -> None:
    # beta 0.5. Rewards 0.5 and -0.5; -0.25 and -0.25: margins 1 and 0.
    #   -log sigmoid(1) = 0.3132616875;  -log sigmoid(0) = 0.6931471806;  mean 0.5032044340
    terms = measured(DPOAlgorithm(spec.DPOSpec(beta=0.5)), *by_hand())
    assert float(terms.loss) == pytest.approx(0.5032044340, abs=1e-9)
    figures = {name: float(value) for name, value in terms.sums.items()}
    assert figures == pytest.approx(
        {
            "preference/loss": 0.5032044340,
            "preference/accuracy": 0.75,
            "preference/margin": 0.5,
            "preference/chosen_reward": 0.125,
            "preference/rejected_reward": -0.375,
            "preference/chosen_logprob": -1.5,
            "preference/rejected_logprob": -1.5,
            "preference/chosen_lost": 0.5,
        },
        abs=1e-9,
    )


def test_conservative_dpo_by_hand() -> None:
    # As above with e = 0.2, and 0.1 times the chosen's -log p a token, 1 and 2.
    #   0.8 * 0.3132616875 + 0.2 * 1.3132616875 = 0.5132616875;  0.6931471806 either way
    #   mean 0.6032044340, + 0.1 * 1.5
    entry = spec.DPOSpec(beta=0.5, label_smoothing=0.2, nll_coefficient=0.1)
    terms = measured(DPOAlgorithm(entry), *by_hand())
    assert float(terms.loss) == pytest.approx(0.6032044340 + 0.15, abs=1e-9)
    assert float(terms.sums["preference/nll_loss"]) == pytest.approx(1.5)


@pytest.mark.parametrize(
    ("reduction", "expected"),
    # The chosen responses of by_hand have 2 tokens and 1, at -1 and -2 each.
    [(REDUCTION.MEAN, 1.5), (REDUCTION.SUM, 2.0)],
)
def test_likelihood_of_the_chosen_by_hand(reduction: spec.LikelihoodReduction, expected: float) -> None:
    batch, logprobs = by_hand()
    batch.sequence_columns["rating"] = torch.tensor([1.0, 1, 2, 1])
    likelihood = {"nll_coefficient": 0.1, "nll_reduction": reduction}
    for plain, imitating in (
        (DPOAlgorithm(spec.DPOSpec(beta=0.5)), DPOAlgorithm(spec.DPOSpec(beta=0.5, **likelihood))),
        (RPOAlgorithm(spec.RPOSpec(beta=0.5)), RPOAlgorithm(spec.RPOSpec(beta=0.5, **likelihood))),
    ):
        terms = measured(imitating, batch, logprobs)
        assert float(terms.sums["preference/nll_loss"]) == pytest.approx(expected)
        without = measured(plain, batch, logprobs)
        assert "preference/nll_loss" not in without.sums
        assert float(terms.loss) == pytest.approx(float(without.loss) + 0.1 * expected)


def test_conservative_dpo_has_an_optimal_margin() -> None:
    # d/dm of -(1 - e) log sigmoid(m) - e log sigmoid(-m) is sigmoid(m) - (1 - e): 0 at log((1 - e) / e).
    batch, logprobs = by_hand()
    batch = batch.select([0, 1])
    expected = math.log(0.8 / 0.2)
    moved = logprobs[:5].clone()
    moved[1] += expected / 0.5 - 2  # the log-ratios differ by 2
    moved.requires_grad_()
    terms = measured(DPOAlgorithm(spec.DPOSpec(beta=0.5, label_smoothing=0.2)), batch, moved)
    assert float(terms.sums["preference/margin"]) == pytest.approx(expected)
    (gradient,) = torch.autograd.grad(terms.loss, moved)
    assert gradient.abs().max() < 1e-12


def test_ipo_by_hand() -> None:
    # beta 0.5: target 1. Mean log-ratios 0.5 and -1: h = 1.5;  -0.5 and -0.25: h = -0.25.
    #   (0.5)^2 = 0.25;  (-1.25)^2 = 1.5625;  mean 0.90625.  beta h: 0.75 and -0.125, mean 0.3125
    terms = measured(IPOAlgorithm(spec.IPOSpec(beta=0.5)), *by_hand())
    assert float(terms.loss) == pytest.approx(0.90625, abs=1e-12)
    assert float(terms.sums["preference/margin"]) == pytest.approx(0.3125)


def test_simpo_by_hand() -> None:
    # beta 2, margin 1. Rewards -2 and -4, less 1: 1;  -4 and -2, less 1: -3.
    #   -log sigmoid(1) = 0.3132616875;  -log sigmoid(-3) = 3.0485873516;  mean 1.6809245195
    batch, logprobs = by_hand()
    del batch.token_columns["reference_logprobs"]
    terms = measured(SimPOAlgorithm(spec.SimPOSpec()), batch, logprobs)
    assert float(terms.loss) == pytest.approx(1.6809245195, abs=1e-9)
    assert float(terms.sums["preference/accuracy"]) == 0.5
    assert "preference/chosen_lost" not in terms.sums


def test_orpo_by_hand() -> None:
    # p = exp(-1) = 0.3678794, odds 0.5819767; p = exp(-2) = 0.1353353, odds 0.1565176.
    #   log of their ratio 1.3132616875, and -1.3132616875: -log sigmoid: 0.2381830, 1.5514447; mean 0.8948139
    #   imitation (1 + 2) / 2 = 1.5
    batch, logprobs = by_hand()
    del batch.token_columns["reference_logprobs"]
    terms = measured(ORPOAlgorithm(spec.ORPOSpec(coefficient=0.5)), batch, logprobs)
    ratio = (math.log(1 + math.exp(-1.3132616875)) + math.log(1 + math.exp(1.3132616875))) / 2
    assert ratio == pytest.approx(0.8948139, abs=1e-6)
    assert float(terms.loss) == pytest.approx(1.5 + 0.5 * ratio, abs=1e-9)
    assert float(terms.sums["preference/odds_ratio_loss"]) == pytest.approx(ratio, abs=1e-9)
    assert float(terms.sums["preference/nll_loss"]) == pytest.approx(1.5)


def test_certain_responses_have_finite_odds() -> None:
    for dtype in (torch.float32, torch.float64):
        certain = torch.tensor([0.0, -1e-30, -50.0], dtype=dtype, requires_grad=True)
        result = log_odds(certain)
        assert bool(result.isfinite().all())
        assert float(result[2].detach()) == pytest.approx(-50)
        (gradient,) = torch.autograd.grad(result.sum(), certain)
        assert bool(gradient.isfinite().all())


@pytest.mark.parametrize(
    ("distance", "expected"),
    [
        # beta 0.5: gaps of the policy 1 and 0. Ratings 3 and 1, 2 and 2, scale 0.5: given 1 and 0.
        (DISTANCE.BACKWARD_KL, 0.0),
        (DISTANCE.FORWARD_KL, 0.0),
        (DISTANCE.SQUARED, 0.0),
    ],
)
def test_rpo_is_zero_at_equal_gaps(distance: spec.RPODistance, expected: float) -> None:
    batch, logprobs = by_hand()
    batch.sequence_columns["rating"] = torch.tensor([3.0, 1, 2, 2])
    logprobs.requires_grad_()
    entry = spec.RPOSpec(beta=0.5, reward_scale=0.5, distance=distance)
    terms = measured(RPOAlgorithm(entry), batch, logprobs)
    assert float(terms.loss) == pytest.approx(expected, abs=1e-12)
    assert float(terms.sums["preference/given_margin"]) == pytest.approx(0.5)
    (gradient,) = torch.autograd.grad(terms.loss, logprobs)
    assert gradient.abs().max() < 1e-12


def test_rpo_by_hand() -> None:
    # beta 0.5: the policy's gaps 1 and 0; given 2 * (1 - 1) = 0 and 2 * (2 - 1) = 2.
    #   sigmoid: q = 0.7310586, 0.5; p = 0.5, 0.8807971
    #   KL(p || q): 0.5 log(0.5 / 0.7310586) + 0.5 log(0.5 / 0.2689414) = 0.1201145
    #               0.8807971 log(0.8807971 / 0.5) + 0.1192029 log(0.1192029 / 0.5) = 0.3278135
    #   KL(q || p): 0.7310586 log(0.7310586 / 0.5) + 0.2689414 log(0.2689414 / 0.5) = 0.1109440
    #               0.5 log(0.5 / 0.8807971) + 0.5 log(0.5 / 0.1192029) = 0.4337808
    #   squared: 1 and 4
    batch, logprobs = by_hand()
    batch.sequence_columns["rating"] = torch.tensor([1.0, 1, 2, 1])
    expected = {
        DISTANCE.BACKWARD_KL: (0.1201145 + 0.3278135) / 2,
        DISTANCE.FORWARD_KL: (0.1109440 + 0.4337808) / 2,
        DISTANCE.SQUARED: 2.5,
    }
    for distance, value in expected.items():
        terms = measured(
            RPOAlgorithm(spec.RPOSpec(beta=0.5, reward_scale=2, distance=distance)), batch, logprobs
        )
        assert float(terms.loss) == pytest.approx(value, abs=1e-6), distance


def test_odd_number_of_sequences_is_rejected() -> None:
    batch, _ = by_hand()
    with pytest.raises(ValueError, match="pairs of sequences, and there are 3"):
        DPOAlgorithm(spec.DPOSpec()).policy_objective().prepare(batch.select([0, 1, 2]))


def singles(old: list[float]) -> Batch:
    """Three rows and two companions, each a prompt of one token and a response of one; reference -1."""
    batch = pack([[1, 2]] * 5, [str(i) for i in range(5)])
    batch.token_columns["loss_mask"] = torch.tensor([0, 1] * 5, dtype=torch.uint8)
    batch.token_columns["reference_logprobs"] = torch.tensor([9.0, -1] * 5, dtype=torch.float64)
    columns = [value for each in old for value in (9.0, each)]
    batch.token_columns["old_logprobs"] = torch.tensor(columns, dtype=torch.float64)
    batch.sequence_columns["label"] = torch.tensor([1, 0, 1, 0, 0], dtype=torch.uint8)
    batch.sequence_columns["companion"] = torch.tensor([0, 0, 0, 1, 1], dtype=torch.uint8)
    return batch


def test_kto_by_hand() -> None:
    # Companions' log-ratios 0.6 and -0.2: z = 0.2. Of the rows 1, -1 and 0.1; good, bad, good. beta 0.5.
    #   good: 1 - sigmoid(0.5 * 0.8) = 0.4013123, 1 - sigmoid(0.5 * -0.1) = 0.5124974; times 2
    #   bad: 1 - sigmoid(0.5 * 1.2) = 0.3543437; times 3
    #   (0.8026247 + 1.0249948 + 1.0630310) / 3 = 0.9635502
    batch = singles([5.0, 5.0, 5.0, -0.4, -1.2])
    algorithm = KTOAlgorithm(spec.KTOSpec(beta=0.5, desirable_weight=2, undesirable_weight=3))
    assert algorithm.needs_old_logprobs and algorithm.needs_reference
    assert algorithm.advantages(batch, {}) == pytest.approx({"preference/kl_baseline": 0.2})
    logprobs = torch.tensor([9, 0, 9, -2, 9, -0.9], dtype=torch.float64)
    terms = measured(algorithm, drop_auxiliary(batch), logprobs)
    assert float(terms.loss) == pytest.approx(0.9635502, abs=1e-6)
    figures = {name: float(value) for name, value in terms.sums.items()}
    assert figures == pytest.approx(
        {
            "preference/loss": 0.9635502,
            "preference/accuracy": 2 / 3,
            "preference/chosen_reward": 0.275,
            "preference/rejected_reward": -0.5,
            "preference/margin": 0.775,
            "preference/chosen_logprob": -0.45,
            "preference/rejected_logprob": -2.0,
            "preference/chosen_lost": 0.0,
        },
        abs=1e-6,
    )


def test_ktos_baseline_is_never_negative() -> None:
    batch = singles([5.0, 5.0, 5.0, -3.0, -1.0])
    assert KTOAlgorithm(spec.KTOSpec()).advantages(batch, {}) == {"preference/kl_baseline": 0.0}


def test_kto_without_mismatched_responses_is_refused() -> None:
    batch = singles([0.0] * 5)
    batch.sequence_columns["companion"].zero_()
    with pytest.raises(ValueError, match="mismatched pairs, and the batch has none"):
        KTOAlgorithm(spec.KTOSpec()).advantages(batch, {})


def test_ktos_value_and_gradient_equal_the_published_formula() -> None:
    batch, logprobs = rows()
    labels = [1, 0, 0, 1, 1, 1, 0, 1]
    batch.sequence_columns["label"] = torch.tensor(labels, dtype=torch.uint8)
    batch.scalars["kl_baseline"] = 0.37
    entry = spec.KTOSpec(beta=0.3, desirable_weight=1.3, undesirable_weight=0.7)
    terms = measured(KTOAlgorithm(entry), batch, logprobs)
    expected = torch.zeros((), dtype=torch.float64)
    for side, good in zip(sides(batch, logprobs), labels, strict=True):
        if good:
            expected = expected + 1.3 * (1 - sigmoid(0.3 * (side.ratio - 0.37))) / 8
        else:
            expected = expected + 0.7 * (1 - sigmoid(0.3 * (0.37 - side.ratio))) / 8
    assert float(terms.loss.detach()) == pytest.approx(float(expected.detach()), abs=1e-9)
    (gradient,) = torch.autograd.grad(terms.loss, logprobs)
    (expected_gradient,) = torch.autograd.grad(expected, logprobs)
    torch.testing.assert_close(gradient, expected_gradient, atol=1e-9, rtol=1e-9)
