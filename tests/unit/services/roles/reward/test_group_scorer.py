"""Scorer that calls a function once for all samples of a prompt."""

from typing import Any, cast

import pytest

from kubealign.spec.sections.score_calls import RewardErrorPolicy
from kubealign.v1 import rollout_pb2
from kubealign_services.roles.reward.group_scorer import GroupScorer, split_groups
from kubealign_services.scoring.functions.batching import MAX_CONSECUTIVE_HANGS
from kubealign_services.scoring.functions.errors import RewardError, RewardHung, RewardRaised
from kubealign_services.scoring.functions.results import RewardResult
from kubealign_services.scoring.worker import read_reward


class Rank:
    """Rank of each response by its length, as a function in a child process would return it. It fails on the
    response x.
    """

    def __init__(self, error: type[RewardError] = RewardRaised) -> None:
        self.calls: list[tuple[list[str], list[str], dict[str, list[Any]]]] = []
        self.error = error

    async def score(
        self, prompts: list[str], responses: list[str], columns: dict[str, list[Any]]
    ) -> list[RewardResult]:
        self.calls.append((prompts, responses, columns))
        if "x" in responses:
            raise self.error("reward rank: f of score.py failed")
        order = sorted(responses, key=len)
        return [
            RewardResult(order.index(each) or None, {"length": len(each)}, f"of {len(order)}")
            for each in responses
        ]


def group(number: int, responses: str, purpose: str = "train@rank") -> list[rollout_pb2.Rollout]:
    columns = b'{"prompt": "p%d", "columns": {"answer": %d}}' % (number, number)
    return [
        rollout_pb2.Rollout(
            fence=1,
            group_id=f"0/{number}",
            sample=sample,
            response=response,
            columns=columns,
            purpose=purpose,
        )
        for sample, response in enumerate(responses.split())
    ]


def scorer(rank: Rank, policy: RewardErrorPolicy = RewardErrorPolicy.RETRY, **options: Any) -> GroupScorer:
    return GroupScorer("rank", "reward-rank-0", cast(Any, rank), policy, **options)


async def test_each_call_has_the_samples_of_one_prompt() -> None:
    rank = Rank()
    scores = await scorer(rank)([*group(4, "bbb a cc"), *group(5, "dd eee")])
    kinds = {"sample_index": [0, 1, 2], "sample_kind": ["policy"] * 3}
    assert rank.calls == [
        (["p4"] * 3, ["bbb", "a", "cc"], {"answer": [4] * 3} | kinds),
        (
            ["p5"] * 2,
            ["dd", "eee"],
            {"answer": [5] * 2, "sample_index": [0, 1], "sample_kind": ["policy"] * 2},
        ),
    ]
    assert [read_reward(score) for score in scores] == [2.0, None, 1.0, None, 1.0]
    assert [score.metrics["length"] for score in scores] == [3, 1, 2, 2, 3]
    assert [score.explanation for score in scores] == ["of 3"] * 3 + ["of 2"] * 2
    assert [(score.group_id, score.sample) for score in scores] == [
        ("0/4", 0),
        ("0/4", 1),
        ("0/4", 2),
        ("0/5", 0),
        ("0/5", 1),
    ]


async def test_a_function_knows_the_samples_that_are_not_trained_on() -> None:
    rank = Rank()
    score = scorer(rank, auxiliary=("greedy", "reference"))
    await score([*group(1, "a bb ccc dddd"), *group(2, "a bb", "validation@rank")])
    kinds = [columns["sample_kind"] for _, _, columns in rank.calls]
    assert kinds == [["policy", "policy", "greedy", "reference"], ["policy", "policy"]]


def test_a_request_that_is_delivered_twice_is_two_groups() -> None:
    twice = [*group(4, "a bb"), *group(4, "a bb"), *group(5, "c")]
    assert [[each.sample for each in members] for members in split_groups(twice)] == [[0, 1], [0, 1], [0]]


@pytest.mark.parametrize("policy", RewardErrorPolicy)
@pytest.mark.parametrize(("error", "kind"), [(RewardRaised, "error"), (RewardHung, "timeout")])
async def test_an_error_is_that_of_all_samples_of_the_prompt(
    policy: RewardErrorPolicy, error: type[RewardError], kind: str
) -> None:
    failures: list[str] = []
    rank = Rank(error)
    scores = await scorer(rank, policy, on_failure=failures.append)(
        [*group(1, "a bb"), *group(2, "a x"), *group(3, "a bb")]
    )
    assert [read_reward(score) for score in (*scores[:2], *scores[4:])] == [None, 1.0, None, 1.0]
    assert not any(score.error or score.failure for score in (*scores[:2], *scores[4:]))
    assert failures == [kind, kind]
    # The prompts before and after it are scored once.
    assert [responses for _, responses, _ in rank.calls].count(["a", "bb"]) == 2
    failed = scores[2:4]
    cause = "reward rank: f of score.py failed"
    if policy is RewardErrorPolicy.RETRY:
        assert [(each.error, each.permanent) for each in failed] == [(cause, False)] * 2
    elif policy is RewardErrorPolicy.FAIL:
        assert [each.error for each in failed] == [
            f"row 0/2, sample {sample}: {cause}; onError is Fail" for sample in (0, 1)
        ]
        assert all(each.permanent for each in failed)
    else:
        value = 0.0 if policy is RewardErrorPolicy.ZERO else None
        assert [read_reward(each) for each in failed] == [value] * 2
        assert [(each.failure, each.explanation, each.error) for each in failed] == [(kind, cause, "")] * 2


async def test_a_group_is_never_scored_in_parts() -> None:
    """A call that takes too long is not repeated on half of the group, as calls for samples are."""
    rank = Rank(RewardHung)
    await scorer(rank)(group(1, "a b c x"))
    assert [len(responses) for _, responses, _ in rank.calls] == [4, 4]


async def test_a_function_that_hangs_on_every_group_fails_the_job() -> None:
    rank = Rank(RewardHung)
    groups = [rollout for number in range(4) for rollout in group(number, "a x")]
    scores = await scorer(rank)(groups)
    permanent = [score.permanent for score in scores]
    assert permanent == [False] * 2 * (MAX_CONSECUTIVE_HANGS - 1) + [True] * 4
