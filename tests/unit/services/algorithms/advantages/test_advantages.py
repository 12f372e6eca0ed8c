"""Advantages of PPO, RLOO and GRPO: by hand, and against loops over one sample at a time."""

import math
import statistics
from collections.abc import Callable

import pytest
import torch

from kubealign.spec import algorithms as spec
from kubealign_services.algorithms.factory import load_algorithm
from kubealign_services.algorithms.online.grpo import GRPOAlgorithm
from kubealign_services.algorithms.online.ppo import PPOAlgorithm
from kubealign_services.algorithms.online.rloo import RLOOAlgorithm
from kubealign_services.batch.packed import Batch, pack
from support.batches import slow_spans

MakeBatch = Callable[..., Batch]
AS_ESTIMATED = spec.AdvantageNormalization(center=spec.AdvantageCenter.NONE)
NO_KL = spec.KL(fixed=spec.FixedKL(coefficient=0))
GROUPS = [0, 0, 0, 1, 1, 1, 2, 2]  # the last group has lost a sample
RESPONSES = [3, 1, 4, 2, 2, 5, 1, 3]


def one_group(rewards: list[float]) -> Batch:
    """Responses of one, two, ... tokens to one prompt of one token; d = log p - log p_ref is 0.1 at every
    response token."""
    batch = pack([[7] * (2 + i) for i in range(len(rewards))], [str(i) for i in range(len(rewards))])
    first = batch.positions == 0
    batch.token_columns["loss_mask"] = (~first).to(torch.uint8)
    logprobs = torch.full((len(batch.tokens),), -1.0, dtype=torch.float64)
    batch.token_columns |= {
        "behaviour_logprobs": logprobs,
        "old_logprobs": logprobs,
        "reference_logprobs": logprobs - 0.1,
    }
    batch.sequence_columns["rewards"] = torch.tensor(rewards, dtype=torch.float64)
    batch.sequence_columns["group"] = torch.zeros(len(rewards), dtype=torch.int64)
    return batch


def test_rloo_subtracts_the_sequence_kl_penalty() -> None:
    # KL of the responses: 0.1, 0.2, 0.3 nats; beta 2. R = 1 - 0.2 = 0.8, 2 - 0.4 = 1.6, 6 - 0.6 = 5.4.
    # A = 0.8 - (1.6 + 5.4) / 2 = -2.7, 1.6 - (0.8 + 5.4) / 2 = -1.5, 5.4 - (0.8 + 1.6) / 2 = 4.2.
    batch = one_group([1, 2, 6])
    metrics = RLOOAlgorithm(spec.RLOOSpec(kl=spec.KL(fixed=spec.FixedKL(coefficient=2)))).advantages(
        batch, {}
    )
    spread = [0, -2.7, 0, -1.5, -1.5, 0, 4.2, 4.2, 4.2]
    assert batch.token("advantages").tolist() == pytest.approx(spread, abs=1e-9)
    assert metrics["kl/reference"] == pytest.approx(0.1)
    assert metrics["kl/reference_sequence"] == pytest.approx(0.2)
    assert metrics["kl/coefficient"] == 2
    assert metrics["return/mean"] == pytest.approx((0.8 + 1.6 + 5.4) / 3)


def test_grpo_by_hand() -> None:
    # Rewards 1, 2, 6: mean 3, std sqrt(7) = 2.6457513: A = -2, -1, 3 over 2.6457523 (the epsilon is 1e-6).
    std = math.sqrt(7) + 1e-6
    batch = one_group([1, 2, 6])
    GRPOAlgorithm(spec.GRPOSpec()).advantages(batch, {})
    expected = [0, -2 / std, 0, -1 / std, -1 / std, 0, 3 / std, 3 / std, 3 / std]
    assert batch.token("advantages").tolist() == pytest.approx(expected, abs=1e-12)

    GRPOAlgorithm(
        spec.GRPOSpec(advantage=spec.AdvantageNormalization(center=spec.AdvantageCenter.GROUP))
    ).advantages(batch, {})
    assert batch.token("advantages").tolist() == pytest.approx([0, -2, 0, -1, -1, 0, 3, 3, 3], abs=1e-12)


def test_ppo_puts_the_kl_at_every_token_and_the_reward_at_the_last() -> None:
    # Second response: two tokens, values 1 and 2, reward 5, beta 0.5, KL 0.1 each; gamma = lambda = 1.
    #   rewards -0.05 and 4.95; R = 4.9, 4.95; A = 4.9 - 1 = 3.9, 4.95 - 2 = 2.95. First response: value 0:
    # 3 - 0.05.
    batch = one_group([3, 5])
    batch.token_columns["values"] = torch.tensor([9, 0, 9, 1, 2], dtype=torch.float64)
    ppo = PPOAlgorithm(
        spec.PPOSpec(
            gae=spec.GAE(gamma=1, lambda_=1),
            kl=spec.KL(fixed=spec.FixedKL(coefficient=0.5)),
            advantage=AS_ESTIMATED,
        )
    )
    metrics = ppo.advantages(batch, {})
    assert batch.token("advantages").tolist() == pytest.approx([0, 2.95, 0, 3.9, 2.95], abs=1e-9)
    assert batch.token("returns").tolist() == pytest.approx([0, 2.95, 0, 4.9, 4.95], abs=1e-9)
    assert batch.token("old_values").tolist() == [9, 0, 9, 1, 2]
    assert metrics["value/mean"] == pytest.approx(1)
    assert metrics["advantage/mean"] == pytest.approx((2.95 + 3.9 + 2.95) / 3)


def test_by_default_the_reward_at_the_end_reaches_every_token() -> None:
    # verl's lam 1.0: R_t is the sum of the rewards from t on, here the response's, whatever the values are.
    batch = one_group([3, 5])
    batch.token_columns["values"] = torch.tensor([9, 0, 9, 1, 2], dtype=torch.float64)
    PPOAlgorithm(spec.PPOSpec(kl=NO_KL, advantage=AS_ESTIMATED)).advantages(batch, {})
    assert batch.token("returns").tolist() == pytest.approx([0, 3, 0, 5, 5], abs=1e-9)
    assert batch.token("advantages").tolist() == pytest.approx([0, 3, 0, 4, 3], abs=1e-9)


def test_ppo_normalises_over_response_tokens_only(make_batch: MakeBatch) -> None:
    batch = make_batch(RESPONSES, GROUPS)
    mask = batch.token("loss_mask").bool()
    PPOAlgorithm(spec.PPOSpec()).advantages(batch, {})
    advantages = batch.token("advantages")
    assert float(advantages[mask].mean()) == pytest.approx(0, abs=1e-9)
    assert float(advantages[mask].std()) == pytest.approx(1, abs=1e-6)
    assert not advantages[~mask].any()


def slow_divergence(batch: Batch, token: int, estimator: spec.KLEstimator) -> float:
    p, q = float(batch.token("old_logprobs")[token]), float(batch.token("reference_logprobs")[token])
    estimates = {"K1": p - q, "K2": 0.5 * (p - q) ** 2, "K3": math.exp(q - p) - (q - p) - 1}
    return {**estimates, "Absolute": max(p - q, q - p)}[estimator]


@pytest.mark.parametrize("estimator", list(spec.KLEstimator))
def test_penalised_groups_equal_a_reference_loop(make_batch: MakeBatch, estimator: spec.KLEstimator) -> None:
    beta, batch = 0.3, make_batch(RESPONSES, GROUPS, seed=5)
    kl = spec.KL(estimator=estimator, fixed=spec.FixedKL(coefficient=beta))
    returns = [
        float(batch.sequence("rewards")[i]) - beta * sum(slow_divergence(batch, t, estimator) for t in span)
        for i, span in enumerate(slow_spans(batch))
    ]
    same = make_batch(RESPONSES, GROUPS, seed=5)
    RLOOAlgorithm(spec.RLOOSpec(kl=kl)).advantages(batch, {})
    GRPOAlgorithm(spec.GRPOSpec(kl=kl)).advantages(same, {})
    for i, span in enumerate(slow_spans(batch)):
        mine = [returns[j] for j in range(len(GROUPS)) if GROUPS[j] == GROUPS[i]]
        others = [returns[j] for j in range(len(GROUPS)) if GROUPS[j] == GROUPS[i] and j != i]
        left = [returns[i] - statistics.fmean(others)] * len(span)
        assert batch.token("advantages")[span].tolist() == pytest.approx(left, abs=1e-9)
        scaled = (returns[i] - statistics.fmean(mine)) / (statistics.stdev(mine) + 1e-6)
        assert same.token("advantages")[span].tolist() == pytest.approx([scaled] * len(span), abs=1e-9)


def test_ppo_group_normalisation_of_tokens(make_batch: MakeBatch) -> None:
    left, scaled = make_batch(RESPONSES, GROUPS, seed=7), make_batch(RESPONSES, GROUPS, seed=7)
    group = spec.AdvantageNormalization(center=spec.AdvantageCenter.GROUP, scale=spec.AdvantageScale.GROUP)
    PPOAlgorithm(spec.PPOSpec(advantage=AS_ESTIMATED)).advantages(left, {})
    PPOAlgorithm(spec.PPOSpec(samples_per_prompt=2, advantage=group)).advantages(scaled, {})
    spans = slow_spans(left)
    for i, span in enumerate(spans):
        among = [
            float(left.token("advantages")[position])
            for j, positions in enumerate(spans)
            if GROUPS[j] == GROUPS[i]
            for position in positions
        ]
        for position in span:
            value = float(left.token("advantages")[position]) - statistics.fmean(among)
            expected = value / (statistics.stdev(among) + 1e-6)
            assert float(scaled.token("advantages")[position]) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("estimator", list(spec.KLEstimator))
def test_ppo_equals_a_reference_loop(make_batch: MakeBatch, estimator: spec.KLEstimator) -> None:
    beta, gamma, lambda_, batch = 0.3, 0.9, 0.8, make_batch(RESPONSES, GROUPS, seed=6)
    kl = spec.KL(estimator=estimator, fixed=spec.FixedKL(coefficient=beta))
    PPOAlgorithm(
        spec.PPOSpec(kl=kl, gae=spec.GAE(gamma=gamma, lambda_=lambda_), advantage=AS_ESTIMATED)
    ).advantages(batch, {})
    values = batch.token("values").tolist()
    for i, span in enumerate(slow_spans(batch)):
        advantage, following = 0.0, 0.0
        for position in reversed(span):
            reward = -beta * slow_divergence(batch, position, estimator)
            if position == span[-1]:
                reward += float(batch.sequence("rewards")[i])
            advantage = reward + gamma * following - values[position] + gamma * lambda_ * advantage
            following = values[position]
            assert float(batch.token("advantages")[position]) == pytest.approx(advantage, abs=1e-9)
            assert float(batch.token("returns")[position]) == pytest.approx(
                advantage + values[position], abs=1e-9
            )


def test_kl_in_the_loss_leaves_the_rewards_alone(make_batch: MakeBatch) -> None:
    with_loss, without = make_batch(RESPONSES, GROUPS), make_batch(RESPONSES, GROUPS)
    loss = spec.KL(placement=spec.KLPlacement.LOSS, fixed=spec.FixedKL(coefficient=5))
    assert "kl/reference" in PPOAlgorithm(spec.PPOSpec(kl=loss)).advantages(with_loss, {})
    assert "kl/reference" not in PPOAlgorithm(spec.PPOSpec(kl=NO_KL)).advantages(without, {})
    torch.testing.assert_close(with_loss.token("advantages"), without.token("advantages"))


def test_an_adaptive_coefficient_is_kept_in_the_state_and_priced_one_step_later() -> None:
    # Observed 0.15 nats a sequence ((0.1 + 0.2) / 2) against a target of 0.3: error -0.5, clipped to -0.2;
    # 2 sequences of 10.
    entry = spec.RLOOSpec(
        kl=spec.KL(adaptive=spec.AdaptiveKL(initial_coefficient=0.5, target=0.3, horizon=10))
    )
    state: dict[str, float] = {}
    first = RLOOAlgorithm(entry).advantages(one_group([1, 2]), state)
    assert first["kl/coefficient"] == 0.5
    assert state == {"kl_coefficient": pytest.approx(0.5 * (1 - 0.2 * 2 / 10))}
    second = RLOOAlgorithm(entry).advantages(one_group([1, 2]), state)
    assert second["kl/coefficient"] == pytest.approx(0.48)


def test_an_unknown_algorithm_is_refused_by_name() -> None:
    with pytest.raises(LookupError, match=r"no algorithm dpo2; there are \['cispo', 'dapo'"):
        load_algorithm("dpo2")
