"""Policy objective against a loop over responses: values and gradients for every value of every component."""

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from kubealign.spec import algorithms as spec
from kubealign_services.algorithms.contract import ModelOutputs, Objective
from kubealign_services.algorithms.losses.policy_objective import PolicyObjective
from kubealign_services.algorithms.losses.surrogate import ClippedRatio
from kubealign_services.algorithms.online.cispo import CISPOAlgorithm
from kubealign_services.algorithms.online.ppo import PPOAlgorithm
from kubealign_services.algorithms.online.reinforce import ReinforceAlgorithm
from kubealign_services.algorithms.online.rloo import RLOOAlgorithm
from kubealign_services.batch.packed import Batch, pack
from kubealign_services.generation.torch_engine.sampling.sampler import SamplingInputs, sample
from support.batches import random_batch, slow_spans, stand_in
from support.policy_losses import slow_policy_loss

WEIGHTS = torch.tensor([0.3, -0.2, 0.4], dtype=torch.float64)
NO_KL = spec.KL(fixed=spec.FixedKL(coefficient=0))
LOSS_KL = spec.KL(
    placement=spec.KLPlacement.LOSS, estimator=spec.KLEstimator.K3, fixed=spec.FixedKL(coefficient=0.2)
)


def batch(uniform: bool = False) -> Batch:
    result = random_batch([3, 1, 4, 2, 2, 5, 1, 3], [0, 0, 0, 0, 1, 1, 1, 1], seed=3)
    advantages = result.token("values").clone()
    if uniform:
        advantages = result.sequence("rewards")[result.sequence_of_token]
    result.token_columns["advantages"] = advantages
    result.token_columns["old_logprobs"] = result.token("behaviour_logprobs") + 0.1 * result.token("values")
    result.sequence_columns["truncated"] = torch.tensor([0, 1, 0, 0, 0, 1, 0, 0], dtype=torch.uint8)
    return result


def value_and_gradient(objective: Objective, batch: Batch) -> tuple[float, Tensor, dict[str, float]]:
    weights = WEIGHTS.clone().requires_grad_()
    objective.prepare(batch)
    terms = objective.loss(stand_in(batch, weights), batch)
    (gradient,) = torch.autograd.grad(terms.loss, weights)
    return float(terms.loss.detach()), gradient, {name: float(value) for name, value in terms.sums.items()}


def clipped(**fields: Any) -> tuple[spec.PPOSpec, Objective]:
    entry = spec.PPOSpec(**({"kl": NO_KL, "clip": spec.Clip(low=0.05, high=0.1)} | fields))
    return entry, PolicyObjective(entry, ClippedRatio(entry.clip), entry.ratio)


def agrees(batch: Batch, **fields: Any) -> None:
    entry, objective = clipped(**fields)
    weights = WEIGHTS.clone().requires_grad_()
    expected = slow_policy_loss(batch, stand_in(batch, weights), entry)
    (slow,) = torch.autograd.grad(expected, weights)
    value, gradient, _ = value_and_gradient(objective, batch)
    assert value == pytest.approx(float(expected.detach()), abs=1e-9)
    torch.testing.assert_close(gradient, slow, atol=1e-9, rtol=0)


@pytest.mark.parametrize(
    ("aggregation", "ratio"), list(itertools.product(spec.LossAggregation, spec.RatioLevel))
)
def test_each_aggregation_of_each_ratio(aggregation: spec.LossAggregation, ratio: spec.RatioLevel) -> None:
    agrees(batch(uniform=ratio is not spec.RatioLevel.TOKEN), aggregation=aggregation, ratio=ratio)


@pytest.mark.parametrize(
    ("level", "outside", "ratio"),
    list(itertools.product(spec.ImportanceLevel, spec.OutOfBoundsWeights, spec.RatioLevel)),
)
def test_each_importance(
    level: spec.ImportanceLevel, outside: spec.OutOfBoundsWeights, ratio: spec.RatioLevel
) -> None:
    bounds = spec.ImportanceCorrection(level=level, low=0.92, high=1.06, outside=outside)
    agrees(batch(uniform=ratio is not spec.RatioLevel.TOKEN), importance=bounds, ratio=ratio)


@pytest.mark.parametrize(
    "fields",
    [
        {"kl": LOSS_KL, "entropy_coefficient": 0.05},
        {"kl": LOSS_KL.model_copy(update={"corrected": True})},
        {"kl": LOSS_KL.model_copy(update={"corrected": True}), "importance": spec.ImportanceCorrection()},
        {"kl": LOSS_KL, "aggregation": spec.LossAggregation.SEQUENCE_SUM, "entropy_coefficient": 0.05},
        {"clip": spec.Clip(low=0.02, high=0.3, dual=1.2)},
        {"mask_truncated": True, "entropy_coefficient": 0.05},
        {"mask_truncated": True, "aggregation": spec.LossAggregation.SEQUENCE_MEAN},
        {"mask_truncated": True, "aggregation": spec.LossAggregation.FIXED_LENGTH},
    ],
    ids=str,
)
def test_each_other_part(fields: dict[str, Any]) -> None:
    agrees(batch(), **fields)


@pytest.mark.parametrize("ratio", [spec.RatioLevel.SEQUENCE, spec.RatioLevel.SEQUENCE_MEAN])
def test_a_response_s_ratio_with_advantages_of_tokens_is_that_of_gspo_token(ratio: spec.RatioLevel) -> None:
    """Zheng et al. 2025, eq. 13 and 14: s_t = sg[s] p_t / sg[p_t], each token with its own advantage."""
    result = batch()
    entry, objective = clipped(ratio=ratio, aggregation=spec.LossAggregation.SEQUENCE_MEAN)
    weights = WEIGHTS.clone().requires_grad_()
    logprobs = stand_in(result, weights).logprobs
    assert logprobs is not None
    spans = slow_spans(result)
    total = torch.zeros((), dtype=torch.float64)
    for span in spans:
        moves = torch.stack([logprobs[t] - result.token("old_logprobs")[t] for t in span])
        one = ratio is spec.RatioLevel.SEQUENCE
        ratio_ = moves.sum().exp() if one else moves.mean().exp()
        for position in span:
            at_token = ratio_.detach() * (logprobs[position] - logprobs[position].detach()).exp()
            advantage = float(result.token("advantages")[position])
            clamped = at_token.clamp(1 - entry.clip.low, 1 + entry.clip.high)
            total = total - torch.minimum(at_token * advantage, clamped * advantage) / len(span) / len(spans)
    (expected,) = torch.autograd.grad(total, weights)
    value, gradient, _ = value_and_gradient(objective, result)
    if ratio is spec.RatioLevel.SEQUENCE_MEAN:
        assert value == pytest.approx(float(total.detach()), abs=1e-9)
        torch.testing.assert_close(gradient, expected, atol=1e-9, rtol=0)
    else:
        # The response is one action and each of its n tokens bears 1 / n: the same direction at each
        # token, and with shares that do not depend on the length the same gradient.
        _, objective = clipped(ratio=ratio, aggregation=spec.LossAggregation.SEQUENCE_SUM)
        _, gradient, _ = value_and_gradient(objective, batch())
        lengths = {len(span) for span in spans}
        assert len(lengths) > 1
        weights = WEIGHTS.clone().requires_grad_()
        logprobs = stand_in(result, weights).logprobs
        assert logprobs is not None
        total = torch.zeros((), dtype=torch.float64)
        for span in spans:
            moves = torch.stack([logprobs[t] - result.token("old_logprobs")[t] for t in span])
            for position in span:
                at_token = (
                    moves.sum().exp().detach() * (logprobs[position] - logprobs[position].detach()).exp()
                )
                advantage = float(result.token("advantages")[position])
                clamped = at_token.clamp(1 - entry.clip.low, 1 + entry.clip.high)
                total = total - torch.minimum(at_token * advantage, clamped * advantage) / len(spans)
        (expected,) = torch.autograd.grad(total, weights)
        torch.testing.assert_close(gradient, expected, atol=1e-9, rtol=0)


def reinforce_gradient(batch: Batch, share: str) -> Tensor:
    """Return the gradient of -A log p(response) by a plain sum; `share`: averaged entries."""
    weights = WEIGHTS.clone().requires_grad_()
    logprobs = stand_in(batch, weights).logprobs
    assert logprobs is not None
    spans = slow_spans(batch)
    tokens = sum(len(span) for span in spans)
    total = torch.zeros((), dtype=torch.float64)
    for position in itertools.chain.from_iterable(spans):
        total = total - float(batch.token("advantages")[position]) * logprobs[position]
    (gradient,) = torch.autograd.grad(total / (tokens if share == "tokens" else len(spans)), weights)
    return gradient


def at_ratio_one(batch: Batch) -> Batch:
    """Return a batch whose sampling policy is the trained policy."""
    logprobs = stand_in(batch, WEIGHTS).logprobs
    assert logprobs is not None
    batch.token_columns["old_logprobs"] = logprobs
    return batch


def test_all_losses_reduce_to_reinforce_at_ratio_one() -> None:
    result = at_ratio_one(batch(uniform=True))
    _, reinforce, _ = value_and_gradient(
        ReinforceAlgorithm(spec.ReinforceSpec(kl=NO_KL)).policy_objective(), result
    )
    torch.testing.assert_close(reinforce, reinforce_gradient(result, "responses"), atol=1e-9, rtol=0)
    _, rloo, _ = value_and_gradient(RLOOAlgorithm(spec.RLOOSpec(kl=NO_KL)).policy_objective(), result)
    torch.testing.assert_close(rloo, reinforce, atol=1e-9, rtol=0)

    by_tokens = reinforce_gradient(result, "tokens")
    for objective in (
        PPOAlgorithm(spec.PPOSpec(kl=NO_KL)).policy_objective(),
        CISPOAlgorithm(spec.CISPOSpec(kl=NO_KL)).policy_objective(),
        ReinforceAlgorithm(
            spec.ReinforceSpec(kl=NO_KL, aggregation=spec.LossAggregation.TOKEN_MEAN)
        ).policy_objective(),
    ):
        _, gradient, _ = value_and_gradient(objective, result)
        torch.testing.assert_close(gradient, by_tokens, atol=1e-9, rtol=0)


@pytest.mark.parametrize("ratio", spec.RatioLevel)
def test_without_old_logprobs_the_ratio_is_one(ratio: spec.RatioLevel) -> None:
    with_old, without = at_ratio_one(batch()), at_ratio_one(batch())
    del without.token_columns["old_logprobs"]
    _, objective = clipped(ratio=ratio)
    expected, figures = value_and_gradient(objective, with_old)[1:]
    gradient, same = value_and_gradient(objective, without)[1:]
    torch.testing.assert_close(gradient, expected, atol=1e-12, rtol=0)
    assert figures["policy/ratio_mean"] == same["policy/ratio_mean"] == pytest.approx(1)
    assert figures["policy/clip_fraction"] == same["policy/clip_fraction"] == 0


@pytest.mark.parametrize(
    ("level", "outside"), list(itertools.product(spec.ImportanceLevel, spec.OutOfBoundsWeights))
)
def test_without_old_logprobs_weights_use_the_step_s_own_pass(
    level: spec.ImportanceLevel, outside: spec.OutOfBoundsWeights
) -> None:
    """The importance weights equal those of a pass before the step and have no gradient."""
    with_old, without = at_ratio_one(batch()), at_ratio_one(batch())
    del without.token_columns["old_logprobs"]
    _, objective = clipped(
        importance=spec.ImportanceCorrection(level=level, outside=outside, low=0.9, high=1.1)
    )
    value, gradient, figures = value_and_gradient(objective, with_old)
    alone, same, messages = value_and_gradient(objective, without)
    assert 0 < figures["importance/outside_share"] < 1
    assert alone == pytest.approx(value, abs=1e-12)
    torch.testing.assert_close(same, gradient, atol=1e-12, rtol=0)
    assert {name: messages[name] for name in figures} == pytest.approx(figures, abs=1e-12)


def two_responses() -> tuple[Batch, ModelOutputs]:
    """Log-ratios 0.1 and 0.2 in the first response, -0.1 in the second; advantages 1, 1 and 2."""
    result = pack([[1, 2, 3], [1, 2]], ["0", "1"])
    result.token_columns["loss_mask"] = torch.tensor([0, 1, 1, 0, 1], dtype=torch.uint8)
    result.token_columns["old_logprobs"] = torch.full((5,), -1.0, dtype=torch.float64)
    result.token_columns["advantages"] = torch.tensor([0, 1, 1, 0, 2], dtype=torch.float64)
    result.scalars["max_tokens"] = 4.0
    logprobs = torch.tensor([0, -0.9, -0.8, 0, -1.1], dtype=torch.float64)
    return result, ModelOutputs(logprobs=logprobs, entropy=torch.tensor([0, 1, 2, 0, 6.0]))


E1, E2, E3, LOW = math.exp(0.1), math.exp(0.2), math.exp(0.3), math.exp(-0.1)
BY_HAND = [
    # Losses of the tokens, clip 0.2: -1.1051709, -min(1.2214028, 1.2) = -1.2, -2 * 0.9048374 = -1.8096748.
    ("TokenMean", "Token", -(E1 + 1.2 + 2 * LOW) / 3),  # -1.3716152
    ("SequenceMean", "Token", -((E1 + 1.2) / 2 + 2 * LOW) / 2),  # -1.4811301
    ("SequenceSum", "Token", -(E1 + 1.2 + 2 * LOW) / 2),  # -2.0574229
    ("FixedLength", "Token", -(E1 + 1.2 + 2 * LOW) / 2 / 4),  # -0.5143557
    # The first response's ratio is exp(0.3) = 1.3498588, clipped to 1.2; the second's 0.9048374.
    ("SequenceSum", "Sequence", -(1.2 + 2 * LOW) / 2),  # -1.5048374
    # Its geometric mean over two tokens is exp(0.15) = 1.1618342, not clipped.
    ("SequenceMean", "SequenceMean", -(math.exp(0.15) + 2 * LOW) / 2),  # -1.4857545
]


@pytest.mark.parametrize(("aggregation", "ratio", "expected"), BY_HAND)
def test_values_by_hand(aggregation: str, ratio: str, expected: float) -> None:
    result, outputs = two_responses()
    _, objective = clipped(
        aggregation=spec.LossAggregation(aggregation), ratio=spec.RatioLevel(ratio), clip=spec.Clip()
    )
    objective.prepare(result)
    terms = objective.loss(outputs, result)
    assert float(terms.loss) == pytest.approx(expected, abs=1e-12)
    assert float(terms.sums["policy/entropy"]) == pytest.approx(3)
    # Token: one of three is clipped; Sequence: one of two responses; SequenceMean: none.
    clip_fraction = {"Token": 1 / 3, "Sequence": 1 / 2, "SequenceMean": 0}[ratio]
    assert float(terms.sums["policy/clip_fraction"]) == pytest.approx(clip_fraction)
    assert float(terms.sums["policy/clip_high_fraction"]) == pytest.approx(clip_fraction)
    largest = {"Token": E2, "Sequence": E3, "SequenceMean": math.exp(0.15)}[ratio]
    assert float(terms.maxima["policy/ratio_max"]) == pytest.approx(largest)


@pytest.mark.parametrize("cut", [{"top_p": 0.95}, {"top_k": 20}], ids=str)
def test_truncated_sampling_leaves_the_weight_of_a_long_response_at_one(cut: dict[str, float]) -> None:
    """500 tokens that the engine sampled with the trainer's weights: no factor per token for what was cut."""
    generator = torch.Generator().manual_seed(5)
    logits = 2 * torch.randn(500, 200, generator=generator)
    inputs = SamplingInputs(
        temperature=torch.ones(500),
        top_k=torch.full((500,), int(cut.get("top_k", 0))),
        top_p=torch.full((500,), cut.get("top_p", 1.0), dtype=torch.float64),
        uniform=torch.rand(500, dtype=torch.float64, generator=generator),
        has_truncation=True,
        has_greedy=False,
    )
    sampled = sample(logits, inputs)
    kept_mass = (sampled.engine_logprobs - sampled.behaviour_logprobs).sum().exp()
    assert float(kept_mass) < 1e-6, "the sampling distribution has to differ much for this test"
    result = pack([[7, *sampled.tokens.tolist()]], ["0"])
    old = logits.double().log_softmax(-1).gather(1, sampled.tokens[:, None])[:, 0]
    columns = {
        "behaviour_logprobs": sampled.behaviour_logprobs.double(),
        "engine_logprobs": sampled.engine_logprobs.double(),
        "old_logprobs": old,
        "loss_mask": torch.ones(500, dtype=torch.uint8),
        "advantages": torch.ones(500, dtype=torch.float64),
    }
    result.token_columns = {name: torch.cat([each.new_zeros(1), each]) for name, each in columns.items()}
    result.sequence_columns["truncated"] = torch.zeros(1, dtype=torch.uint8)
    _, objective = clipped(importance=spec.ImportanceCorrection(level=spec.ImportanceLevel.SEQUENCE))
    objective.prepare(result)
    logprobs = result.token("old_logprobs")
    terms = objective.loss(ModelOutputs(logprobs=logprobs, entropy=torch.zeros(501)), result)
    assert float(terms.sums["importance/mean"]) == pytest.approx(1, abs=1e-4)


def test_the_kl_in_the_loss_is_corrected_off_policy_unless_the_spec_says_otherwise() -> None:
    def corrects(**fields: Any) -> bool:
        return spec.PPOSpec(**({"prompts_per_step": 8, "kl": LOSS_KL} | fields)).corrects_kl

    off = LOSS_KL.model_copy(update={"corrected": False})
    assert not corrects()
    assert corrects(epochs_per_step=2) and corrects(minibatch_sequences=4) and corrects(max_staleness=1)
    assert not corrects(epochs_per_step=2, kl=off)
    assert not corrects(epochs_per_step=2, kl=spec.KL(fixed=spec.FixedKL()))


def test_importance_by_hand() -> None:
    # Engine -1.5, -0.5, -1.2 against old -1: w = exp(0.5) = 1.6487213, exp(-0.5) = 0.6065307, exp(0.2) =
    # 1.2214028. At most 1.3: 1.3, 0.6065307, 1.2214028. Losses as above: -1.1051709, -1.2, -1.8096748:
    #   (1.3 * 1.1051709 + 0.6065307 * 1.2 + 1.2214028 * 1.8096748) / 3 = 4.3749... / 3
    result, outputs = two_responses()
    result.token_columns["engine_logprobs"] = torch.tensor([0, -1.5, -0.5, 0, -1.2], dtype=torch.float64)
    _, objective = clipped(clip=spec.Clip(), importance=spec.ImportanceCorrection(high=1.3))
    objective.prepare(result)
    terms = objective.loss(outputs, result)
    weights = [1.3, math.exp(-0.5), math.exp(0.2)]
    assert float(terms.loss) == pytest.approx(
        -(weights[0] * E1 + weights[1] * 1.2 + weights[2] * 2 * LOW) / 3, abs=1e-12
    )
    assert float(terms.sums["importance/mean"]) == pytest.approx(sum(weights) / 3)
    assert float(terms.sums["importance/outside_share"]) == pytest.approx(1 / 3)
    assert float(terms.maxima["importance/max"]) == pytest.approx(math.exp(0.5))
    # r - 1 - log r of r = 1.6487213, 0.6065307, 1.2214028: 0.1487213, 0.1065307, 0.0214028: mean 0.0922182
    assert float(terms.sums["policy/behaviour_kl"]) == pytest.approx(0.0922182, abs=1e-6)

    masked = spec.ImportanceCorrection(high=1.3, outside=spec.OutOfBoundsWeights.MASK)
    _, objective = clipped(clip=spec.Clip(), importance=masked)
    objective.prepare(result)
    # The first token adds nothing to the sum but still counts in the denominator, three.
    assert float(objective.loss(outputs, result).loss) == pytest.approx(
        -(weights[1] * 1.2 + weights[2] * 2 * LOW) / 3, abs=1e-12
    )


def test_cispo_by_hand() -> None:
    # r = 1.1051709, 1.2214028, 0.9048374; clamped to 0.95 and 1.15: 1.1051709, 1.15, 0.95. Losses
    # -w A log p: 1.1051709 * 0.9, 1.15 * 0.8, 0.95 * 2 * 1.1; mean over three tokens. Gradient -w A: none is
    # lost.
    result, outputs = two_responses()
    assert outputs.logprobs is not None
    logprobs = outputs.logprobs.clone().requires_grad_()
    objective = CISPOAlgorithm(spec.CISPOSpec(ratio_floor=0.95, ratio_cap=1.15, kl=NO_KL)).policy_objective()
    objective.prepare(result)
    terms = objective.loss(ModelOutputs(logprobs=logprobs, entropy=outputs.entropy), result)
    (gradient,) = torch.autograd.grad(terms.loss, logprobs)
    assert float(terms.loss.detach()) == pytest.approx((E1 * 0.9 + 1.15 * 0.8 + 0.95 * 2.2) / 3, abs=1e-12)
    assert gradient.tolist() == pytest.approx([0, -E1 / 3, -1.15 / 3, 0, -0.95 * 2 / 3], abs=1e-12)
    assert float(terms.sums["policy/clip_fraction"]) == pytest.approx(2 / 3)


def test_fixed_length_without_a_limit_says_what_is_missing() -> None:
    result = batch()
    del result.scalars["max_tokens"]
    _, objective = clipped(aggregation=spec.LossAggregation.FIXED_LENGTH)
    with pytest.raises(KeyError, match="max_tokens"):
        objective.prepare(result)


def test_a_microbatch_of_masked_responses_adds_nothing() -> None:
    _, objective = clipped(mask_truncated=True, importance=spec.ImportanceCorrection())
    result = batch()
    objective.prepare(result)
    weights = WEIGHTS.clone().requires_grad_()
    part = result.select([1, 5])
    terms = objective.loss(stand_in(part, weights), part)
    assert float(terms.loss.detach()) == 0
    (gradient,) = torch.autograd.grad(terms.loss, weights)
    assert gradient.tolist() == [0, 0, 0]
    assert all(math.isfinite(float(value)) for value in [*terms.sums.values(), *terms.maxima.values()])


def test_gap_covers_tokens_of_the_current_weights() -> None:
    result, outputs = two_responses()
    del result.token_columns["old_logprobs"]
    result.token_columns["engine_logprobs"] = torch.tensor([0, -1.0, -1.0, 0, -1.0], dtype=torch.float64)
    result.token_columns["weight_version"] = torch.tensor([0, 7, 8, 0, 7], dtype=torch.int32)
    _, objective = clipped()

    def gap() -> tuple[float | None, float | None]:
        objective.prepare(result)
        terms = objective.loss(outputs, result)
        mean, largest = "rollout/logprob_gap_mean", "rollout/logprob_gap_max"
        result.token_columns.pop("gap_shares", None)
        return (
            None if mean not in terms.sums else float(terms.sums[mean]),
            None if largest not in terms.maxima else float(terms.maxima[largest]),
        )

    # Against -0.9, -0.8 and -1.1: 0.1, 0.2, 0.1.
    assert gap() == (pytest.approx(0.4 / 3), pytest.approx(0.2))
    result.scalars["version"] = 7.0
    assert gap() == (pytest.approx(0.1), pytest.approx(0.1))
    result.scalars["version"] = 9.0
    assert gap() == (None, None)


def test_the_variance_of_the_ratio_is_around_one() -> None:
    given = batch()
    logprobs, old = stand_in(given, WEIGHTS).logprobs, given.token("old_logprobs")
    assert logprobs is not None
    squares = [
        (math.exp(float(logprobs[position] - old[position])) - 1) ** 2
        for position in itertools.chain.from_iterable(slow_spans(given))
    ]
    _, objective = clipped()
    assert value_and_gradient(objective, given)[2]["policy/ratio_variance"] == pytest.approx(
        sum(squares) / len(squares), abs=1e-12
    )
