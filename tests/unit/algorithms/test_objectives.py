"""The losses on a small batch: by hand, against autograd on a differently written loss, and whatever the
split."""

import itertools
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from kubealign.spec import algorithms as spec
from kubealign_services.algorithms.contract import LossTerms, ModelOutputs, Objective
from kubealign_services.algorithms.grpo import GRPO
from kubealign_services.algorithms.pooling import pooled
from kubealign_services.algorithms.ppo import PPO
from kubealign_services.algorithms.reward_model import RewardModel
from kubealign_services.algorithms.rloo import RLOO
from kubealign_services.algorithms.sft import SFT
from kubealign_services.batch.packed import Batch, pack

MakeBatch = Callable[..., Batch]
GROUPS = [0, 0, 0, 0, 1, 1, 1, 1]
RESPONSES = [3, 1, 4, 2, 2, 5, 1, 3]
LOSS_KL = spec.KL(
    placement=spec.KLPlacement.LOSS, estimator=spec.KLEstimator.K3, fixed=spec.FixedKL(coefficient=0.2)
)
NO_KL = spec.KL(fixed=spec.FixedKL(coefficient=0))


def ready(make_batch: MakeBatch, seed: int = 1) -> Batch:
    """A batch with the columns of every algorithm: token advantages are PPO's, sequence advantages RLOO's."""
    batch = make_batch(RESPONSES, GROUPS, seed)
    PPO(spec.PPO()).advantages(batch, {})
    RLOO(spec.RLOO()).advantages(batch, {})
    batch.sequence_columns["rating"] = torch.arange(len(batch)).double()
    return batch


def model(batch: Batch, weights: Tensor) -> ModelOutputs:
    """A stand-in for a model: outputs that depend on the weights, differently at each token and each
    sequence's own tokens only."""
    place, which = (
        batch.positions.double(),
        torch.tensor([float(s) for s in batch.sample_ids], dtype=torch.float64),
    )
    features = torch.stack(
        [torch.cos(place + which[batch.sequence_of_token]), torch.sin(2 * place), place / 10]
    )
    move = weights @ features
    return ModelOutputs(
        logprobs=batch.token("behaviour_logprobs") + 0.5 * move,
        entropy=1.0 + move.sin(),
        values=2 * move.tanh(),
    )


def objectives() -> dict[str, Objective]:
    critic = PPO(spec.PPO()).value_objective()
    return {
        "ppo": PPO(spec.PPO(kl=LOSS_KL, entropy_coefficient=0.1)).policy_objective(),
        "critic": critic,
        "rloo": RLOO(spec.RLOO(entropy_coefficient=0.1)).policy_objective(),
        "grpo": GRPO(spec.GRPO()).policy_objective(),
        "grpo-token-mean": GRPO(spec.GRPO(aggregation=spec.LossAggregation.TOKEN_MEAN)).policy_objective(),
        "sft": SFT(spec.SFT()).policy_objective(),
        "preferences": RewardModel(
            spec.RewardModel(
                language_model_coefficient=0.5, score_penalty=0.01, pooling=spec.Pooling.RESPONSE_SUM
            )
        ).policy_objective(),
        "ratings": RewardModel(
            spec.RewardModel(objective=spec.RewardObjective(regression=spec.Regression()), score_penalty=0.1)
        ).policy_objective(),
    }


def run(
    objective: Objective, batch: Batch, split: list[list[int]]
) -> tuple[Tensor, dict[str, float], dict[str, float]]:
    """(gradient, summed metrics, largest maxima) of one minibatch, cut as `split` says (places of units)."""
    weights = torch.tensor([0.3, -0.2, 0.4], dtype=torch.float64, requires_grad=True)
    objective.prepare(batch)
    sums: dict[str, float] = {"loss": 0.0}
    maxima: dict[str, float] = {}
    for units in split:
        part = batch.select([unit * objective.unit + k for unit in units for k in range(objective.unit)])
        terms: LossTerms = objective.loss(model(part, weights), part)
        terms.loss.backward()  # type: ignore[no-untyped-call]
        sums["loss"] += float(terms.loss.detach())
        for name, value in terms.sums.items():
            assert not value.requires_grad, name
            sums[name] = sums.get(name, 0.0) + float(value)
        for name, value in terms.maxima.items():
            maxima[name] = max(maxima.get(name, -math.inf), float(value))
    assert weights.grad is not None
    return weights.grad, sums, maxima


@pytest.mark.parametrize("name", list(objectives()))
def test_gradient_and_metrics_do_not_depend_on_the_split(make_batch: MakeBatch, name: str) -> None:
    objective = objectives()[name]
    units = len(RESPONSES) // objective.unit
    whole = run(objective, ready(make_batch), [list(range(units))])
    generator = torch.Generator().manual_seed(11)
    for size in (1, 2, 3):
        order = torch.randperm(units, generator=generator).tolist()
        gradient, sums, maxima = run(
            objective, ready(make_batch), [order[i : i + size] for i in range(0, units, size)]
        )
        torch.testing.assert_close(gradient, whole[0], atol=1e-10, rtol=1e-9)
        assert sums == pytest.approx(whole[1], abs=1e-10)
        assert maxima == pytest.approx(whole[2], abs=1e-12)
    assert whole[0].abs().max() > 1e-4


@pytest.mark.parametrize("name", list(objectives()))
def test_what_stands_outside_the_response_does_not_matter(make_batch: MakeBatch, name: str) -> None:
    objective, batch = objectives()[name], ready(make_batch)
    objective.prepare(batch)
    outputs = model(batch, torch.tensor([0.3, -0.2, 0.4], dtype=torch.float64))
    outside = ~batch.token("loss_mask").bool()
    clean = float(objective.loss(outputs, batch).loss)
    for column in (outputs.logprobs, outputs.entropy, outputs.values):
        assert column is not None
        column[outside] = math.nan
    assert float(objective.loss(outputs, batch).loss) == pytest.approx(clean, abs=1e-12)


def test_a_microbatch_without_response_tokens_adds_nothing(make_batch: MakeBatch) -> None:
    for name, objective in objectives().items():
        batch = ready(make_batch)
        objective.prepare(batch)
        for shares in ("token_shares", "language_shares"):
            if shares in batch.token_columns:
                batch.token_columns[shares].zero_()
        if "sequence_shares" in batch.sequence_columns:
            batch.sequence_columns["sequence_shares"].zero_()
        batch.token_columns["loss_mask"].zero_()
        terms = objective.loss(model(batch, torch.zeros(3, dtype=torch.float64, requires_grad=True)), batch)
        assert float(terms.loss.detach()) == 0, name
        assert terms.loss.requires_grad, name
        assert all(math.isfinite(float(value)) for value in terms.maxima.values()), name


def test_token_policy_loss_equals_a_slow_loop(make_batch: MakeBatch) -> None:
    batch = ready(make_batch)
    weights = torch.tensor([0.3, -0.2, 0.4], dtype=torch.float64)
    outputs = model(batch, weights)
    assert outputs.logprobs is not None and outputs.entropy is not None
    entry = spec.GRPO(kl=LOSS_KL, clip=spec.Clip(low=0.1, high=0.3), entropy_coefficient=0.05)
    objective = GRPO(entry).policy_objective()
    objective.prepare(batch)
    terms = objective.loss(outputs, batch)

    sequences = []
    offsets = batch.cu_seqlens.tolist()
    for start, end in itertools.pairwise(offsets):
        tokens = []
        for t in range(start, end):
            if not batch.token("loss_mask")[t]:
                continue
            new, old = float(outputs.logprobs[t]), float(batch.token("old_logprobs")[t])
            ratio, advantage = math.exp(new - old), float(batch.token("advantages")[t])
            bound = 1.3 if advantage > 0 else 0.9
            gain = min(ratio, bound) * advantage if advantage > 0 else max(ratio, bound) * advantage
            back = float(batch.token("reference_logprobs")[t]) - new
            tokens.append(-gain + 0.2 * (math.exp(back) - back - 1) - 0.05 * float(outputs.entropy[t]))
        sequences.append(sum(tokens) / len(tokens))
    assert float(terms.loss) == pytest.approx(sum(sequences) / len(sequences), abs=1e-9)


def test_rloo_at_ratio_one_has_the_gradient_of_reinforce(make_batch: MakeBatch) -> None:
    for with_old in (True, False):
        batch = ready(make_batch)
        weights = torch.tensor([0.3, -0.2, 0.4], dtype=torch.float64, requires_grad=True)
        logprobs = model(batch, weights).logprobs
        assert logprobs is not None
        if with_old:
            batch.token_columns["old_logprobs"] = logprobs.detach()
        else:
            del batch.token_columns["old_logprobs"]
        objective = RLOO(spec.RLOO(kl=NO_KL)).policy_objective()
        objective.prepare(batch)
        terms = objective.loss(model(batch, weights), batch)
        (gradient,) = torch.autograd.grad(terms.loss, weights)

        offsets, mask = batch.cu_seqlens.tolist(), batch.token("loss_mask").bool()
        reinforce = torch.zeros((), dtype=torch.float64)
        for i, advantage in enumerate(batch.sequence("advantages").tolist()):
            span = torch.arange(offsets[i], offsets[i + 1])
            reinforce = reinforce - advantage * logprobs[span[mask[span]]].sum() / len(batch)
        (expected,) = torch.autograd.grad(reinforce, weights)
        torch.testing.assert_close(gradient, expected, atol=1e-12, rtol=0)
        assert float(terms.sums["policy/ratio_mean"]) == pytest.approx(1)
        assert float(terms.sums["policy/clip_fraction"]) == 0


def test_rloo_clips_the_ratio_of_the_whole_response() -> None:
    # Two responses of two tokens. Log-ratios 0.1 + 0.2 = 0.3, and -0.1 + 0 = -0.1; A = 1 and 2; clip 0.2.
    #   r = 1.3498588: min(1.3498588, 1.2) = 1.2.    r = 0.9048374: 2 * 0.9048374 = 1.8096748.    -(1.2 +
    # 1.8096748) / 2
    batch = pack([[1, 2, 3], [1, 2, 3]], ["0", "1"])
    batch.token_columns["loss_mask"] = torch.tensor([0, 1, 1, 0, 1, 1], dtype=torch.uint8)
    batch.token_columns["old_logprobs"] = torch.full((6,), -1.0, dtype=torch.float64)
    batch.sequence_columns["advantages"] = torch.tensor([1.0, 2.0], dtype=torch.float64)
    logprobs = torch.tensor([0, -0.9, -0.8, 0, -1.1, -1.0], dtype=torch.float64)
    objective = RLOO(spec.RLOO()).policy_objective()
    objective.prepare(batch)
    terms = objective.loss(ModelOutputs(logprobs=logprobs, entropy=torch.ones(6, dtype=torch.float64)), batch)
    assert float(terms.loss) == pytest.approx(-(1.2 + 2 * math.exp(-0.1)) / 2, abs=1e-12)
    assert float(terms.loss) == pytest.approx(-1.5048374180, abs=1e-9)
    assert float(terms.sums["policy/clip_fraction"]) == pytest.approx(0.5)
    assert float(terms.maxima["policy/ratio_max"]) == pytest.approx(1.3498588075760032)
    assert float(terms.sums["policy/entropy"]) == pytest.approx(1)


def test_sft_is_the_mean_over_all_response_tokens() -> None:
    # Response tokens -1, -2 and -6 of two sequences: (1 + 2 + 6) / 3 = 3, not the mean of means (1.5 + 6) /
    # 2.
    batch = pack([[1, 2, 3], [1, 2]], ["0", "1"])
    batch.token_columns["loss_mask"] = torch.tensor([0, 1, 1, 0, 1], dtype=torch.uint8)
    objective = SFT(spec.SFT()).policy_objective()
    objective.prepare(batch)
    terms = objective.loss(ModelOutputs(logprobs=torch.tensor([0, -1, -2, 0, -6.0])), batch)
    assert float(terms.loss) == pytest.approx(3)
    assert float(terms.sums["sft/loss"]) == pytest.approx(3)


def pairs() -> Batch:
    """Two pairs; head outputs are VALUES."""
    batch = pack([[1, 2, 3], [1, 2], [1, 2], [1, 2, 3]], ["0", "1", "2", "3"])
    batch.token_columns["loss_mask"] = torch.tensor([0, 1, 1, 0, 1, 0, 1, 0, 1, 1], dtype=torch.uint8)
    return batch


VALUES = torch.tensor([9, 1, 2, 9, 1, 9, 0.5, 9, -1, 2.5], dtype=torch.float64)


def test_pooling() -> None:
    assert pooled(VALUES, pairs(), spec.Pooling.LAST_TOKEN).tolist() == [2, 1, 0.5, 2.5]
    assert pooled(VALUES, pairs(), spec.Pooling.RESPONSE_SUM).tolist() == [3, 1, 0.5, 1.5]


def test_bradley_terry_by_hand() -> None:
    # Sums over the response: chosen 3 and 0.5, rejected 1 and 1.5: margins 2 and -1.
    #   -log sigmoid(2) = 0.1269280110;  -log sigmoid(-1) = 1.3132616875; mean 0.7200948493
    # score^2: (9 + 1 + 0.25 + 2.25) / 4 = 3.125. Chosen tokens' log-probabilities: -1, -1, -4: language
    # loss 2.
    logprobs = torch.full((10,), -100.0, dtype=torch.float64)
    logprobs[[1, 2]] = -1.0
    logprobs[6] = -4.0
    objective = RewardModel(
        spec.RewardModel(
            pooling=spec.Pooling.RESPONSE_SUM, language_model_coefficient=0.5, score_penalty=0.01
        )
    ).policy_objective()
    assert objective.unit == 2 and objective.outputs == {"values", "logprobs"}
    batch = pairs()
    objective.prepare(batch)
    terms = objective.loss(ModelOutputs(logprobs=logprobs, values=VALUES), batch)
    assert float(terms.loss) == pytest.approx(0.7200948493 + 0.5 * 2 + 0.01 * 3.125, abs=1e-9)
    figures = {name: float(value) for name, value in terms.sums.items()}
    assert figures == pytest.approx(
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


def test_regression_by_hand() -> None:
    # Last outputs 2, 1, 0.5, 2.5 against 1, 1, 1, 1: errors 1, 0, -0.5, 1.5: squares 1 + 0 + 0.25 + 2.25 =
    # 3.5, over 4.
    batch = pairs()
    batch.sequence_columns["rating"] = torch.ones(4, dtype=torch.float64)
    entry = spec.RewardModel(objective=spec.RewardObjective(regression=spec.Regression()))
    objective = RewardModel(entry).policy_objective()
    assert objective.unit == 1 and objective.outputs == {"values"}
    objective.prepare(batch)
    terms = objective.loss(ModelOutputs(values=VALUES), batch)
    assert float(terms.loss) == pytest.approx(0.875)
    assert float(terms.sums["rm/absolute_error"]) == pytest.approx(0.75)


def test_an_odd_number_of_preference_sequences_is_refused() -> None:
    objective = RewardModel(spec.RewardModel()).policy_objective()
    with pytest.raises(ValueError, match="pairs of sequences, and there are 3"):
        objective.prepare(pairs().select([0, 1, 2]))


def test_a_forward_pass_that_left_an_output_out_is_named(make_batch: MakeBatch) -> None:
    batch = ready(make_batch)
    objective = objectives()["critic"]
    objective.prepare(batch)
    with pytest.raises(ValueError, match="reads values"):
        objective.loss(ModelOutputs(), batch)
