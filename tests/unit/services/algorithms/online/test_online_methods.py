"""Advantages of the online algorithms besides PPO, RLOO and GRPO: by hand, and their exact differences."""

import math
import statistics
from collections.abc import Callable
from typing import Any

import pytest
import torch

from kubealign.spec import algorithms as spec
from kubealign_services.algorithms.contract import Algorithm
from kubealign_services.algorithms.factory import load_algorithm
from kubealign_services.algorithms.losses.importance_sampling import importance_weights
from kubealign_services.algorithms.online.base import OnlineAlgorithm
from kubealign_services.algorithms.online.overlong import overlong_penalty, response_lengths
from kubealign_services.batch.auxiliary_sequences import drop_auxiliary
from kubealign_services.batch.packed import Batch, concatenate, pack
from support.batches import slow_spans, stand_in

MakeBatch = Callable[..., Batch]
NO_KL = spec.KL(fixed=spec.FixedKL(coefficient=0))
IN_REWARD = spec.KL(fixed=spec.FixedKL(coefficient=2))
GROUPS = [0, 0, 0, 1, 1, 1, 2, 2]  # the last group has lost a sample
RESPONSES = [3, 1, 4, 2, 2, 5, 1, 3]
WEIGHTS = torch.tensor([0.3, -0.2, 0.4], dtype=torch.float64)
ENTRIES: dict[str, spec.OnPolicySpec] = {
    "ppo": spec.PPOSpec(samples_per_prompt=2),
    "reinforce": spec.ReinforceSpec(),
    "reinforce_plus_plus": spec.ReinforcePlusPlusSpec(),
    "rloo": spec.RLOOSpec(),
    "remax": spec.ReMaxSpec(),
    "grpo": spec.GRPOSpec(),
    "deepseek_math": spec.DeepSeekMathSpec(),
    "dr_grpo": spec.DrGRPOSpec(),
    "dapo": spec.DAPOSpec(),
    "gspo": spec.GSPOSpec(),
    "cispo": spec.CISPOSpec(),
}


def make(name: str, **fields: Any) -> Algorithm:
    return load_algorithm(name)(type(ENTRIES[name])(**fields))


def one_group(rewards: list[float], companions: list[int] | None = None) -> Batch:
    """Responses of one, two, ... tokens to one prompt of one token; d = log p - log p_ref is 0.1 at every
    response token."""
    batch = pack([[7] * (2 + i) for i in range(len(rewards))], [str(i) for i in range(len(rewards))])
    first = batch.positions == 0
    logprobs = torch.full((len(batch.tokens),), -1.0, dtype=torch.float64)
    batch.token_columns |= {
        "loss_mask": (~first).to(torch.uint8),
        "behaviour_logprobs": logprobs,
        "old_logprobs": logprobs,
        "reference_logprobs": logprobs - 0.1,
    }
    batch.sequence_columns["rewards"] = torch.tensor(rewards, dtype=torch.float64)
    batch.sequence_columns["group"] = torch.zeros(len(rewards), dtype=torch.int64)
    if companions is not None:
        batch.sequence_columns["companion"] = torch.tensor(companions, dtype=torch.uint8)
    return batch


def test_reinforce_by_hand() -> None:
    # Beta 2: R = 1 - 0.2 = 0.8, 2 - 0.4 = 1.6, 6 - 0.6 = 5.4; their mean is 2.6.
    batch = one_group([1, 2, 6])
    metrics = make("reinforce", kl=IN_REWARD).advantages(batch, {})
    expected = [0, -1.8, 0, -1, -1, 0, 2.8, 2.8, 2.8]
    assert batch.token("advantages").tolist() == pytest.approx(expected, abs=1e-9)
    assert metrics["return/mean"] == pytest.approx(2.6)

    batch = one_group([1, 2, 6])
    no_baseline = spec.AdvantageNormalization(center=spec.AdvantageCenter.NONE)
    make("reinforce", kl=IN_REWARD, advantage=no_baseline).advantages(batch, {})
    expected = [0, 0.8, 0, 1.6, 1.6, 0, 5.4, 5.4, 5.4]
    assert batch.token("advantages").tolist() == pytest.approx(expected, abs=1e-9)


def test_reinforce_plus_plus_by_hand() -> None:
    # Beta 2 at KL 0.1: a token pays 0.2 for itself and each after it. R = 2.8; 4.6, 4.8; 1.4, 1.6, 1.8 of
    # rewards 3, 5, 2. Mean 17 / 6; over the deviation of all six tokens.
    batch = one_group([3, 5, 2])
    returns = [2.8, 4.6, 4.8, 1.4, 1.6, 1.8]
    metrics = make("reinforce_plus_plus", kl=IN_REWARD).advantages(batch, {})
    mask = batch.token("loss_mask").bool()
    deviation = statistics.stdev(returns) + 1e-6
    assert batch.token("advantages")[mask].tolist() == pytest.approx(
        [(value - 17 / 6) / deviation for value in returns], abs=1e-9
    )
    assert not batch.token("advantages")[~mask].any()
    assert metrics["return/mean"] == pytest.approx(17 / 6)


def test_reinforce_plus_plus_with_a_group_s_baseline_by_hand() -> None:
    # Rewards less their group's mean 10/3, then the KL to come, normalised over the six tokens.
    batch = one_group([3, 5, 2])
    baseline = spec.AdvantageNormalization(center=spec.AdvantageCenter.GROUP, scale=spec.AdvantageScale.BATCH)
    make("reinforce_plus_plus", kl=IN_REWARD, samples_per_prompt=3, advantage=baseline).advantages(batch, {})
    left = [value - 10 / 3 for value in (2.8, 4.6, 4.8, 1.4, 1.6, 1.8)]
    mean, deviation = statistics.mean(left), statistics.stdev(left) + 1e-6
    assert batch.token("advantages")[batch.token("loss_mask").bool()].tolist() == pytest.approx(
        [(value - mean) / deviation for value in left], abs=1e-9
    )


def test_reinforce_plus_plus_baseline_is_centred_over_the_tokens_of_the_step(make_batch: MakeBatch) -> None:
    """verl's masked_whiten (core_algos.py), NeMo-RL and OpenRLHF: two groups, long responses were wrong."""
    batch = make_batch([2, 8, 3, 5], [0, 0, 1, 1])
    batch.sequence_columns["rewards"] = torch.tensor([1.0, 0, 1, 0], dtype=torch.float64)
    baseline = spec.AdvantageNormalization(center=spec.AdvantageCenter.GROUP, scale=spec.AdvantageScale.BATCH)
    make("reinforce_plus_plus", kl=NO_KL, samples_per_prompt=2, advantage=baseline).advantages(batch, {})
    advantages = batch.token("advantages")[batch.token("loss_mask").bool()]
    # 5 tokens of 0.5 and 13 of -0.5: mean -2/9, standard deviation sqrt(18/17 (1/4 - 4/81)).
    deviation = math.sqrt(18 / 17 * (1 / 4 - 4 / 81)) + 1e-6
    right, wrong = (0.5 + 2 / 9) / deviation, (-0.5 + 2 / 9) / deviation
    assert (right, wrong) == (pytest.approx(1.57, abs=5e-3), pytest.approx(-0.60, abs=5e-3))
    expected = [right] * 2 + [wrong] * 8 + [right] * 3 + [wrong] * 5
    assert advantages.tolist() == pytest.approx(expected, abs=1e-9)


def test_reinforce_plus_plus_baseline_scales_by_the_returns_themselves() -> None:
    """Two groups, rewards 3, 5, 2 and 103, 105, 102, each less its mean; the deviation is of all rewards."""
    batch = one_group([3, 5, 2])
    by_returns = spec.AdvantageNormalization(
        center=spec.AdvantageCenter.GROUP, scale=spec.AdvantageScale.BATCH_OF_RETURNS
    )
    far = one_group([103, 105, 102])
    far.sequence_columns["group"] += 1
    joined = concatenate([batch, far])
    make("reinforce_plus_plus", kl=NO_KL, samples_per_prompt=3, advantage=by_returns).advantages(joined, {})
    deviation = statistics.stdev([3, 5, 5, 2, 2, 2, 103, 105, 105, 102, 102, 102]) + 1e-6
    own = [value - 10 / 3 for value in (3, 5, 5, 2, 2, 2)]
    assert joined.token("advantages")[joined.token("loss_mask").bool()].tolist() == pytest.approx(
        [value / deviation for value in own * 2], abs=1e-9
    )


def test_remax_by_hand_excludes_the_greedy_response() -> None:
    # R = 1 - 0.2, 2 - 0.4; the third response, of reward 6, is the likeliest: A = 0.8 - 6, 1.6 - 6. Its KL
    # and its reward enter no metric.
    batch = one_group([1, 2, 6], companions=[0, 0, 1])
    metrics = make("remax", kl=IN_REWARD).advantages(batch, {})
    assert batch.token("advantages").tolist() == pytest.approx([0, -5.2, 0, -4.4, -4.4, 0, 0, 0, 0], abs=1e-9)
    assert metrics["kl/reference_sequence"] == pytest.approx(0.15)
    assert metrics["return/mean"] == pytest.approx(1.2)
    assert metrics["advantage/mean"] == pytest.approx(-4.8)
    learned = drop_auxiliary(batch)
    assert learned.token("advantages").tolist() == pytest.approx([0, -5.2, 0, -4.4, -4.4], abs=1e-9)


def test_remax_compares_each_group_with_its_own_greedy_response(make_batch: MakeBatch) -> None:
    batch = make_batch(RESPONSES, [0, 0, 1, 1, 1, 0, 2, 2])
    batch.sequence_columns["companion"] = torch.tensor([0, 1, 0, 0, 1, 0, 1, 0], dtype=torch.uint8)
    rewards = batch.sequence("rewards").tolist()
    make("remax", kl=NO_KL).advantages(batch, {})
    greedy = {0: rewards[1], 1: rewards[4], 2: rewards[6]}
    for i, span in enumerate(slow_spans(batch)):
        learned = i not in (1, 4, 6)
        expected = rewards[i] - greedy[int(batch.sequence("group")[i])] if learned else 0.0
        assert batch.token("advantages")[span].tolist() == pytest.approx([expected] * len(span), abs=1e-12)


def test_remax_names_the_group_without_a_greedy_response() -> None:
    batch = one_group([1, 2, 6])
    with pytest.raises(ValueError, match=r"groups \[0\] have no greedy response"):
        make("remax", kl=NO_KL).advantages(batch, {})


@pytest.mark.parametrize("name", sorted(set(ENTRIES) - {"remax"}))
def test_auxiliary_sequence_does_not_affect_others(make_batch: MakeBatch, name: str) -> None:
    algorithm, with_companion = load_algorithm(name)(ENTRIES[name]), make_batch(RESPONSES, GROUPS)
    with_companion.sequence_columns["rewards"][4] = 1e6
    with_companion.sequence_columns["companion"] = torch.tensor([0, 0, 0, 0, 1, 0, 0, 0], dtype=torch.uint8)
    others = [0, 1, 2, 3, 5, 6, 7]
    without = make_batch(RESPONSES, GROUPS).select(others)
    metrics = algorithm.advantages(with_companion, {})
    assert metrics == pytest.approx(algorithm.advantages(without, {}))
    left = with_companion.select(others)
    torch.testing.assert_close(left.token("advantages"), without.token("advantages"))
    assert not with_companion.select([4]).token("advantages").any()


def test_the_overlong_penalty_by_hand() -> None:
    # Limit 5, buffer 2: free up to 3 tokens, half the penalty at 4, all of it at 5 and beyond. Penalty 3.
    batch = one_group([1, 1, 1, 1, 1, 1])
    batch.scalars["max_tokens"] = 5.0
    no_baseline = spec.AdvantageNormalization(center=spec.AdvantageCenter.NONE)
    overlong = spec.OverlongPenalty(buffer_tokens=2, penalty=3)
    metrics = make("reinforce", kl=NO_KL, advantage=no_baseline, overlong=overlong).advantages(batch, {})
    assert metrics["reward/overlong_penalty"] == pytest.approx((1.5 + 3 + 3) / 6)
    last = (batch.cu_seqlens[1:] - 1).long()
    assert batch.token("advantages")[last].tolist() == pytest.approx([1, 1, 1, -0.5, -2, -2])
    assert batch.sequence("rewards").tolist() == [1] * 6, "what was scored stays as it was"


def test_overlong_penalty_counts_the_tokens_of_the_environment() -> None:
    """Limit 6, buffer 2. After a prompt of one token: two sampled, two of a tool, two sampled; the same
    without the tool; and a response without a token."""
    batch = pack([[7] * 7, [7] * 5, [7] * 2], ["0", "1", "2"])
    mask = "01100110111100"
    batch.token_columns["loss_mask"] = torch.tensor([int(each) for each in mask], dtype=torch.uint8)
    batch.sequence_columns["rewards"] = torch.zeros(3, dtype=torch.float64)
    batch.scalars["max_tokens"] = 6.0
    assert response_lengths(batch).tolist() == [6, 4, 0]
    assert overlong_penalty(batch, spec.OverlongPenalty(buffer_tokens=2, penalty=3)).tolist() == [3, 0, 0]


def test_overlong_penalty_is_applied_first(make_batch: MakeBatch) -> None:
    overlong = spec.OverlongPenalty(buffer_tokens=3, penalty=0.7)
    batch, by_hand = make_batch(RESPONSES, GROUPS), make_batch(RESPONSES, GROUPS)
    by_hand.sequence_columns["rewards"] = by_hand.sequence("rewards") - 0.7 * torch.tensor(
        [min(max((n - 2) / 3, 0.0), 1.0) for n in RESPONSES], dtype=torch.float64
    )
    make("grpo", overlong=overlong).advantages(batch, {})
    make("grpo").advantages(by_hand, {})
    torch.testing.assert_close(batch.token("advantages"), by_hand.token("advantages"))


def test_truncated_responses_stay_in_the_baseline(make_batch: MakeBatch) -> None:
    batch, same = make_batch(RESPONSES, GROUPS), make_batch(RESPONSES, GROUPS)
    batch.sequence_columns["truncated"][1] = 1
    algorithm = make("grpo", mask_truncated=True, kl=NO_KL)
    algorithm.advantages(batch, {})
    make("grpo", kl=NO_KL).advantages(same, {})
    torch.testing.assert_close(batch.token("advantages"), same.token("advantages"))
    objective = algorithm.policy_objective()
    objective.prepare(batch)
    shares = batch.token("loss_shares")
    assert not shares[slow_spans(batch)[1]].any()
    assert float(shares.sum()) == pytest.approx(1), "the shares are of those that are learned"


def losses(batch: Batch, **entries: spec.OnPolicySpec) -> dict[str, float]:
    """Return each algorithm's loss on the same samples, after the policy has moved."""
    result = {}
    for key, entry in entries.items():
        algorithm = load_algorithm(key.rstrip("_0123456789"))(entry)
        fresh = batch.select(range(len(batch)))
        algorithm.advantages(fresh, {})
        objective = algorithm.policy_objective()
        objective.prepare(fresh)
        result[key] = float(objective.loss(stand_in(fresh, WEIGHTS), fresh).loss)
    return result


def test_grpo_dr_grpo_and_dapo_differ_exactly_where_their_papers_say(make_batch: MakeBatch) -> None:
    """Setting exactly the fields that a paper names turns one algorithm into the other; fewer do not."""
    batch = make_batch(RESPONSES, [0, 0, 0, 1, 1, 1, 2, 2], seed=9)
    group = spec.AdvantageNormalization(center=spec.AdvantageCenter.GROUP)
    group_std = spec.AdvantageNormalization(
        center=spec.AdvantageCenter.GROUP, scale=spec.AdvantageScale.GROUP
    )
    fixed, mean = spec.LossAggregation.FIXED_LENGTH, spec.LossAggregation.SEQUENCE_MEAN
    result = losses(
        batch,
        grpo=spec.GRPOSpec(aggregation=mean),
        grpo_2=spec.GRPOSpec(),
        dr_grpo=spec.DrGRPOSpec(),
        dapo=spec.DAPOSpec(),
        dr_grpo_1=spec.DrGRPOSpec(advantage=group_std, aggregation=mean),
        dr_grpo_2=spec.DrGRPOSpec(aggregation=mean),
        dr_grpo_3=spec.DrGRPOSpec(advantage=group_std),
        grpo_1=spec.GRPOSpec(advantage=group, aggregation=fixed),
        dapo_1=spec.DAPOSpec(clip=spec.Clip(), aggregation=mean),
        dapo_2=spec.DAPOSpec(clip=spec.Clip()),
    )
    assert result["dr_grpo_1"] == pytest.approx(result["grpo"], abs=1e-12)
    assert result["grpo_1"] == pytest.approx(result["dr_grpo"], abs=1e-12)
    assert result["dapo_1"] == pytest.approx(result["grpo"], abs=1e-12)
    assert result["dapo_2"] == pytest.approx(result["grpo_2"], abs=1e-12)
    for other in ("dr_grpo", "dr_grpo_2", "dr_grpo_3", "dapo", "dapo_2"):
        assert abs(result[other] - result["grpo"]) > 1e-4, other


def test_grpo_s_defaults_and_the_paper_s_settings() -> None:
    """DAPO: no KL penalty, token-level loss. TRL's GRPOConfig: beta 0.0, loss_type dapo. verl: use_kl_loss
    False, loss_agg_mode token-mean. DeepSeekMath: a KL coefficient of 0.04."""
    defaults = spec.GRPOSpec()
    assert defaults.aggregation is spec.LossAggregation.TOKEN_MEAN
    assert not defaults.uses_reference
    kl = {"placement": "Loss", "estimator": "K3", "fixed": {"coefficient": 0.04}}
    paper = {"samplesPerPrompt": 64, "aggregation": "SequenceMean", "kl": kl}
    same = spec.GRPOSpec.model_validate(paper)
    preset = spec.DeepSeekMathSpec()
    assert preset.uses_reference and preset.kl.placement is spec.KLPlacement.LOSS
    assert preset.model_dump() == same.model_dump()


def test_dapo_s_upper_bound_alone_is_wider() -> None:
    for advantage, differs in ((1.0, True), (-1.0, False)):
        batch = one_group([0, 0])
        logprobs = torch.full((len(batch.tokens),), -1 + 0.25 * advantage, dtype=torch.float64)
        result = []
        for name in ("grpo", "dapo"):
            batch.token_columns["advantages"] = torch.full_like(logprobs, advantage)
            objective = make(name, kl=NO_KL, aggregation=spec.LossAggregation.TOKEN_MEAN).policy_objective()
            objective.prepare(batch)
            outputs = stand_in(batch, WEIGHTS)
            outputs = type(outputs)(logprobs=logprobs, entropy=outputs.entropy)
            result.append(float(objective.loss(outputs, batch).loss))
        # exp(0.25) = 1.2840254: clipped to 1.2, or 1.28. exp(-0.25) = 0.7788008: at 0.8 by both.
        assert (abs(result[0] - result[1]) > 0.05) == differs
        assert result[0] == pytest.approx(-1.2 if differs else 0.8)


@pytest.mark.parametrize("name", sorted(ENTRIES))
def test_equal_rewards_and_lone_samples_give_no_nan(make_batch: MakeBatch, name: str) -> None:
    batch = make_batch([2, 3, 1, 2], [0, 0, 1, 2])
    batch.sequence_columns["rewards"] = torch.ones(4, dtype=torch.float64)
    batch.token_columns["reference_logprobs"] = batch.token("old_logprobs")
    if name == "remax":
        batch.sequence_columns["group"][:] = 0
        batch.sequence_columns["companion"] = torch.tensor([1, 0, 0, 0], dtype=torch.uint8)
    metrics = load_algorithm(name)(ENTRIES[name]).advantages(batch, {})
    assert torch.isfinite(batch.token("advantages")).all()
    assert all(math.isfinite(value) for value in metrics.values())
    if name != "ppo":
        assert not batch.token("advantages").any()
    if ENTRIES[name].samples_per_prompt > 1 and name != "ppo":
        assert metrics["reward/constant_groups"] == 1
    else:
        assert "reward/constant_groups" not in metrics


@pytest.mark.parametrize("name", sorted(ENTRIES))
def test_required_inputs_of_each_algorithm(name: str) -> None:
    kind = type(ENTRIES[name])
    base = {"prompts_per_step": 8, "samples_per_prompt": 2, "kl": NO_KL}

    def needs(**fields: Any) -> tuple[bool, bool, bool]:
        algorithm = load_algorithm(name)(kind(**(base | fields)))
        assert (algorithm.value_objective() is not None) == algorithm.needs_critic
        return algorithm.needs_old_logprobs, algorithm.needs_reference, algorithm.needs_critic

    critic = name == "ppo"
    assert needs() == (False, False, critic)
    assert needs(kl=spec.KL(fixed=spec.FixedKL())) == (True, True, critic)
    assert needs(minibatch_sequences=8) == (True, False, critic)
    assert needs(epochs_per_step=2) == (True, False, critic)
    assert needs(max_staleness=1) == (False, False, critic)
    assert needs(importance=spec.ImportanceCorrection()) == (False, False, critic)
    assert needs(max_staleness=1, epochs_per_step=2) == (True, False, critic)


def test_staleness_enables_decoupled_importance_weights(make_batch: MakeBatch) -> None:
    """Fu et al. 2025: w = p_old / p_behaviour at each token, at most 5."""
    batch = make_batch(RESPONSES, GROUPS)
    batch.token_columns["old_logprobs"] = batch.token("behaviour_logprobs") + 2.5 * batch.token("values")
    batch.token_columns["advantages"] = torch.ones(len(batch.tokens), dtype=torch.float64)
    objective = make("ppo", kl=NO_KL, max_staleness=2).policy_objective()
    objective.prepare(batch)
    outputs = stand_in(batch, WEIGHTS)
    at_old = type(outputs)(logprobs=batch.token("old_logprobs"), entropy=outputs.entropy)
    loss = float(objective.loss(at_old, batch).loss)
    positions = [position for span in slow_spans(batch) for position in span]
    weights = [min(math.exp(2.5 * float(batch.token("values")[position])), 5.0) for position in positions]
    assert max(weights) == 5.0
    assert loss == pytest.approx(-statistics.fmean(weights), abs=1e-9)


def test_staleness_enables_a_dual_clip(make_batch: MakeBatch) -> None:
    """A ratio of 20 and advantage -1: the loss is 20, or with stale samples 3; a limit in the spec wins."""
    batch = make_batch(RESPONSES, GROUPS)
    batch.token_columns["advantages"] = -torch.ones(len(batch.tokens), dtype=torch.float64)
    logprobs = batch.token("old_logprobs") + math.log(20)
    batch.token_columns["engine_logprobs"] = batch.token("old_logprobs")
    losses_by_limit = []
    for fields in ({}, {"max_staleness": 1}, {"max_staleness": 1, "clip": spec.Clip(dual=7)}):
        objective = make("grpo", kl=NO_KL, **fields).policy_objective()
        objective.prepare(batch)
        outputs = stand_in(batch, WEIGHTS)
        outputs = type(outputs)(logprobs=logprobs, entropy=outputs.entropy)
        losses_by_limit.append(float(objective.loss(outputs, batch).loss))
    assert losses_by_limit == pytest.approx([20, 3, 7])


def test_vapo_s_critic_and_policy_have_lambdas_of_their_own(make_batch: MakeBatch) -> None:
    """Yue et al. 2025: returns of lambda 1, advantages of 1 - 1 / (alpha n)."""
    decoupled = spec.GAE(lambda_=0.8, critic_lambda=1.0, length_adaptive=spec.LengthAdaptiveLambda(alpha=0.5))
    one = spec.AdvantageNormalization(center=spec.AdvantageCenter.NONE)
    batch = make_batch(RESPONSES, GROUPS)
    algorithm = make("ppo", kl=NO_KL, gae=decoupled, advantage=one)
    algorithm.advantages(batch, {})
    for span, length in zip(slow_spans(batch), RESPONSES, strict=True):
        lambda_ = max(0.0, 1 - 1 / (0.5 * length))
        values = [float(batch.token("values")[t]) for t in span]
        reward = float(batch.sequence("rewards")[int(batch.sequence_of_token[span[0]])])
        advantage = 0.0
        for t, value, following in reversed(list(zip(span, values, [*values[1:], 0.0], strict=True))):
            delta = (reward if t == span[-1] else 0.0) + following - value
            advantage = delta + lambda_ * advantage
            assert float(batch.token("advantages")[t]) == pytest.approx(advantage, abs=1e-9)
            assert float(batch.token("returns")[t]) == pytest.approx(reward, abs=1e-9)


def test_ppo_places_the_rewards_of_turns_at_their_tokens(make_batch: MakeBatch) -> None:
    """A loop over single steps: reward of the turn at its token, what is left of the sum at the last one."""
    none = spec.AdvantageNormalization(center=spec.AdvantageCenter.NONE)
    batch = make_batch(RESPONSES, GROUPS)
    spans = list(slow_spans(batch))
    turns = torch.zeros(len(batch.tokens), dtype=torch.float64)
    for number, span in enumerate(spans):
        turns[span[0]], turns[span[len(span) // 2]] = 0.5 + number, -0.25
    batch.token_columns["turn_rewards"] = turns
    make("ppo", kl=NO_KL, gae=spec.GAE(gamma=0.9, lambda_=0.8), advantage=none).advantages(batch, {})
    for span in spans:
        values = [float(batch.token("values")[t]) for t in span]
        rewards = [float(turns[t]) for t in span]
        total = float(batch.sequence("rewards")[int(batch.sequence_of_token[span[0]])])
        rewards[-1] += total - sum(rewards)
        advantage = 0.0
        steps = list(zip(span, rewards, values, [*values[1:], 0.0], strict=True))
        for t, reward, value, following in reversed(steps):
            advantage = reward + 0.9 * following - value + 0.9 * 0.8 * advantage
            assert float(batch.token("advantages")[t]) == pytest.approx(advantage, abs=1e-9)
            assert float(batch.token("returns")[t]) == pytest.approx(advantage + value, abs=1e-9)


def test_positive_responses_add_their_negative_log_likelihood(make_batch: MakeBatch) -> None:
    """VAPO: mu times the mean of -log p over the tokens of the responses with a reward above 0."""
    batch = make_batch(RESPONSES, GROUPS)
    algorithm = make("grpo", kl=NO_KL)
    algorithm.advantages(batch, {})
    outputs = stand_in(batch, WEIGHTS)
    losses_by_weight = []
    for weight in (0.0, 0.1):
        objective = make("grpo", kl=NO_KL, positive_nll_coefficient=weight).policy_objective()
        objective.prepare(batch)
        losses_by_weight.append(float(objective.loss(outputs, batch).loss))
    assert outputs.logprobs is not None
    spans = zip(slow_spans(batch), batch.sequence("rewards").tolist(), strict=True)
    positive = [-float(outputs.logprobs[t]) for span, reward in spans if reward > 0 for t in span]
    assert 0 < len(positive) < sum(RESPONSES)
    expected = losses_by_weight[0] + 0.1 * statistics.fmean(positive)
    assert losses_by_weight[1] == pytest.approx(expected, abs=1e-9)


def test_masked_weights_have_a_lower_bound_of_a_half() -> None:
    masked = spec.ImportanceCorrection(outside=spec.OutOfBoundsWeights.MASK)
    difference = torch.tensor([0.4, 0.6, 1.0], dtype=torch.float64).log()
    weights = importance_weights(difference, torch.arange(3), masked)
    assert weights.applied.tolist() == pytest.approx([0, 0.6, 1])
    truncated = importance_weights(difference, torch.arange(3), spec.ImportanceCorrection())
    assert truncated.applied.tolist() == pytest.approx([0.4, 0.6, 1])
    with pytest.raises(ValueError, match="must be below high"):
        spec.ImportanceCorrection(outside=spec.OutOfBoundsWeights.MASK, high=0.4)


def test_an_algorithm_without_a_surrogate_is_no_algorithm() -> None:
    with pytest.raises(TypeError, match="surrogate"):
        OnlineAlgorithm(spec.PPOSpec())  # type: ignore[abstract]
