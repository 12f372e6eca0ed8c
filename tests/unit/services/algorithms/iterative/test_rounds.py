"""Rows of a round's samples, worked by hand, and their losses."""

import itertools
import math

import pytest
import torch

from kubealign.spec import algorithms as spec
from kubealign_services.algorithms.contract import ModelOutputs, Objective
from kubealign_services.algorithms.iterative.judge_parsing import JudgeScore, parse_judge_scores
from kubealign_services.algorithms.iterative.rejection_sampling import RejectionSamplingAlgorithm
from kubealign_services.algorithms.iterative.rounds import RoundPrompt, RoundResponse, RoundRows, pack_rows
from kubealign_services.algorithms.iterative.self_rewarding import SelfRewardingAlgorithm
from kubealign_services.algorithms.iterative.spin import SPINAlgorithm
from support.batches import random_batch, stand_in

JUDGE = spec.Judge(prompt="{response}?")
PATTERN = JUDGE.pattern


def prompt(name: str, *rewards: float | None, demonstration: list[int] | None = None) -> RoundPrompt:
    """Return a prompt whose sample k has the one token 10 + k."""
    responses = [RoundResponse(f"{name}#{k}", [10 + k], reward) for k, reward in enumerate(rewards)]
    return RoundPrompt(name, [1, 2], responses, demonstration)


def names(round_rows: RoundRows) -> list[tuple[str, ...]]:
    return [tuple(response.name for response in row.responses) for row in round_rows.rows]


def test_rejection_sampling_keeps_the_best_above_the_minimum() -> None:
    prompts = [prompt("a", 1.0, 3.0, 2.0), prompt("b", 0.5, 0.5, 0.4), prompt("c", -1.0, 5.0, 4.0)]
    #   a: 3, 2, 1    b: 0.5 (sampled first), 0.5, 0.4    c: 5, 4, -1
    best = RejectionSamplingAlgorithm(spec.RejectionSamplingSpec()).rows(prompts)
    assert names(best) == [("a#1",), ("b#0",), ("c#1",)]
    # all: (6 + 1.4 + 8) / 9; kept: (3 + 0.5 + 5) / 3
    assert best.metrics == pytest.approx(
        {"round/reward_mean": 15.4 / 9, "round/chosen_reward": 8.5 / 3}, abs=1e-12
    )
    two = RejectionSamplingAlgorithm(spec.RejectionSamplingSpec(keep_per_prompt=2, minimum_reward=2.0)).rows(
        prompts
    )
    assert names(two) == [("a#1",), ("a#2",), ("c#1",), ("c#2",)]
    assert two.metrics["round/chosen_reward"] == pytest.approx((3 + 2 + 5 + 4) / 4)


def test_empty_round_reports_the_best_reward() -> None:
    result = RejectionSamplingAlgorithm(spec.RejectionSamplingSpec(minimum_reward=6.0)).rows(
        [prompt("a", 1.0, 5.5)]
    )
    assert result.rows == [] and not result.is_converged
    assert (
        result.empty_reason
        == "the best of 2 rewards is 5.5, below minimumReward (6): lower it, or sample more"
    )


def test_responses_without_a_reward_are_not_imitated() -> None:
    algorithm = RejectionSamplingAlgorithm(spec.RejectionSamplingSpec())
    result = algorithm.rows([prompt("a", None, -2.0, -1.0), prompt("b", None, None)])
    assert names(result) == [("a#2",)]
    assert result.metrics == {"round/reward_mean": -1.5, "round/chosen_reward": -1.0}
    nothing = algorithm.rows([prompt("b", None, None)])
    assert nothing.rows == [] and nothing.empty_reason == "no reward applies to any of 2 responses"


def test_spin_pairs_each_sample_with_its_demonstration() -> None:
    result = SPINAlgorithm(spec.SPINSpec()).rows(
        [prompt("a", None, None, demonstration=[11]), prompt("b", None, demonstration=[7, 8])]
    )
    assert names(result) == [
        ("a#0/demonstration", "a#0"),
        ("a#1/demonstration", "a#1"),
        ("b#0/demonstration", "b#0"),
    ]
    # a#1 is [11], as demonstrated: one of three.
    assert result.metrics == pytest.approx({"round/alike_share": 1 / 3})
    batch = pack_rows(result.rows)
    assert batch.tokens.tolist() == [1, 2, 11, 1, 2, 10, 1, 2, 11, 1, 2, 11, 1, 2, 7, 8, 1, 2, 10]
    assert batch.token("loss_mask").tolist() == [0, 0, 1] * 4 + [0, 0, 1, 1] + [0, 0, 1]
    assert batch.sample_ids[:2] == ["a#0/demonstration", "a#0"]


def test_self_rewarding_pairs_best_with_worst() -> None:
    rewarding = SelfRewardingAlgorithm(spec.SelfRewardingSpec(judge=JUDGE, minimum_margin=1.0))
    result = rewarding.rows(
        [
            prompt("a", 2.0, None, 5.0, 3.0),
            prompt("b", 4.0, 3.0),  # differ by no more than the margin
            prompt("c", None, 3.0),  # a single response
            prompt("d", 5.0, 1.0, 5.0, 1.0),  # ties: the first is best, the last worst
        ]
    )
    assert names(result) == [("a#2", "a#0"), ("d#0", "d#3")]
    # judged: 2 5 3, 4 3, 3, 5 1 5 1: ten of twelve, 32 in all
    assert result.metrics == pytest.approx(
        {
            "round/unjudged_share": 2 / 12,
            "round/reward_mean": 3.2,
            "round/chosen_reward": 5.0,
            "round/rejected_reward": 1.5,
        }
    )


def test_unparsed_and_equal_judgements_are_distinguished() -> None:
    rewarding = SelfRewardingAlgorithm(spec.SelfRewardingSpec(judge=JUDGE))
    silent = rewarding.rows([prompt("a", None, None)])
    assert not silent.is_converged and "none of 2 responses got a score from the judge" in silent.empty_reason
    alike = rewarding.rows([prompt("a", 3.0, 3.0)])
    assert alike.is_converged and "differ by more than minimumMargin (0)" in alike.empty_reason


def test_judge_score_is_the_mean_of_parsed_scores() -> None:
    answers = ["Score: 4", "It is good. score:2.5 Score: 1", "no idea", "Score: -1"]
    assert parse_judge_scores(answers, PATTERN) == JudgeScore(score=(4 + 2.5 - 1) / 3, answers=4, unparsed=1)
    assert parse_judge_scores(["good"], PATTERN) == JudgeScore(None, 1, 1)
    assert parse_judge_scores([], PATTERN) == JudgeScore(None, 0, 0)
    # Matches that are no finite number, and a match in which the group did not participate.
    assert parse_judge_scores(["mark x", "mark nan", "mark 1e999"], r"mark (\S+)") == JudgeScore(None, 3, 3)
    assert parse_judge_scores(["none"], r"none|mark (\d)") == JudgeScore(None, 1, 1)


@pytest.mark.parametrize(
    "objective",
    [
        SPINAlgorithm(spec.SPINSpec(beta=0.3)).policy_objective(),
        SelfRewardingAlgorithm(spec.SelfRewardingSpec(judge=JUDGE, beta=0.3)).policy_objective(),
    ],
)
def test_the_loss_of_pairs_equals_a_slow_loop(objective: Objective) -> None:
    """-log sigmoid(beta (log p(y) - log p_k(y) - log p(y') + log p_k(y'))), mean over the pairs; values and
    gradients."""
    assert objective.unit == 2
    batch = random_batch([3, 1, 4, 2], [0] * 4, seed=5)
    weights = torch.tensor([0.3, -0.2, 0.4], dtype=torch.float64, requires_grad=True)
    objective.prepare(batch)
    loss = objective.loss(stand_in(batch, weights), batch).loss
    (gradient,) = torch.autograd.grad(loss, weights)

    logprobs = stand_in(batch, weights).logprobs
    assert logprobs is not None
    gains = []
    for start, end in itertools.pairwise(batch.cu_seqlens.tolist()):
        gain = torch.zeros((), dtype=torch.float64)
        for t in range(start, end):
            if batch.token("loss_mask")[t]:
                gain = gain + logprobs[t] - batch.token("reference_logprobs")[t]
        gains.append(gain)
    slow = sum(-torch.log(1 / (1 + torch.exp(-0.3 * (gains[i] - gains[i + 1])))) for i in (0, 2)) / 2
    assert isinstance(slow, torch.Tensor)
    (expected,) = torch.autograd.grad(slow, weights)
    torch.testing.assert_close(loss, slow, atol=1e-9, rtol=0)
    torch.testing.assert_close(gradient, expected, atol=1e-9, rtol=0)


def test_spin_by_hand() -> None:
    # log p - log p_k: of the demonstration 0.4 + 0.2 = 0.6, of the sample -0.5; beta 0.5: margin 0.55.
    #   -log sigmoid(0.55) = log(1 + e^-0.55) = log(1.5769498) = 0.4554923
    result = SPINAlgorithm(spec.SPINSpec(beta=0.5)).rows([prompt("a", None, demonstration=[7, 8])])
    batch = pack_rows(result.rows)
    batch.token_columns["reference_logprobs"] = torch.tensor(
        [0, 0, -1.4, -1.2, 0, 0, -1.0], dtype=torch.float64
    )
    logprobs = torch.tensor([0, 0, -1.0, -1.0, 0, 0, -1.5], dtype=torch.float64)
    objective = SPINAlgorithm(spec.SPINSpec(beta=0.5)).policy_objective()
    objective.prepare(batch)
    terms = objective.loss(ModelOutputs(logprobs=logprobs), batch)
    assert float(terms.loss) == pytest.approx(math.log(1 + math.exp(-0.55)), abs=1e-12)
    assert float(terms.loss) == pytest.approx(0.4554923, abs=1e-6)
    assert float(terms.sums["preference/margin"]) == pytest.approx(0.55)


def test_rejection_sampling_imitates_the_kept_tokens() -> None:
    # Kept: the responses [10, 11] and [12]; their tokens' log-probabilities -1, -2 and -6: (1 + 2 + 6) / 3.
    prompts = [
        RoundPrompt("a", [1], [RoundResponse("a#0", [10, 11], 1.0), RoundResponse("a#1", [9], 0.0)]),
        RoundPrompt("b", [1], [RoundResponse("b#0", [12], 1.0)]),
    ]
    method = RejectionSamplingAlgorithm(spec.RejectionSamplingSpec())
    batch = pack_rows(method.rows(prompts).rows)
    objective = method.policy_objective()
    objective.prepare(batch)
    terms = objective.loss(ModelOutputs(logprobs=torch.tensor([0, -1, -2, 0, -6.0])), batch)
    assert float(terms.loss) == pytest.approx(3)
