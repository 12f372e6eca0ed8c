"""Scorer that calls a reward function."""

from typing import Any, cast

import pytest
import torch

from kubealign.spec.sections.score_calls import RewardErrorPolicy
from kubealign.v1 import rollout_pb2, scoring_pb2
from kubealign_services.batch.codec import encode
from kubealign_services.batch.packed import pack
from kubealign_services.roles.driver.metrics.batch_metrics import reward_failure_metrics, score_detail_metrics
from kubealign_services.roles.reward.function_scorer import FunctionScorer
from kubealign_services.runtime.rpc.errors import InvalidRequest
from kubealign_services.scoring.functions.errors import (
    BadReward,
    RewardError,
    RewardHung,
    RewardNotImported,
    RewardRaised,
)
from kubealign_services.scoring.functions.protocol import RESPONSE_LENGTH
from kubealign_services.scoring.functions.results import RewardResult
from kubealign_services.scoring.worker import read_reward


class LengthReward:
    """Scores a response by its length, as a function in a child process would."""

    async def score(
        self, prompts: list[str], responses: list[str], columns: dict[str, list[Any]]
    ) -> list[RewardResult]:
        return [RewardResult(float(len(response))) for response in responses]


def scorer() -> FunctionScorer:
    return FunctionScorer("length", "reward-length-0", cast(Any, LengthReward()))


async def test_rollouts_are_scored_in_order() -> None:
    rollouts = [
        rollout_pb2.Rollout(response=text, columns=b'{"prompt": "p", "columns": {}}') for text in ("a", "abc")
    ]
    assert [score.reward for score in await scorer()(rollouts)] == [1.0, 3.0]


@pytest.mark.parametrize("policy", list(RewardErrorPolicy))
async def test_texts_that_no_message_can_hold(policy: RewardErrorPolicy) -> None:
    """A program can raise an exception with half of a surrogate pair, which its explanation states."""

    class Escaping:
        async def score(
            self, prompts: list[str], responses: list[str], columns: dict[str, list[Any]]
        ) -> list[RewardResult]:
            if "bad" in responses:
                raise RewardRaised("reward escaping: ValueError: \udfff")
            return [RewardResult(0.0, {}, "ValueError: \ud800")] * len(responses)

    rollouts = [
        rollout_pb2.Rollout(response=text, columns=b'{"prompt": "p", "columns": {}}') for text in ("a", "bad")
    ]
    good, bad = await FunctionScorer("escaping", "w", cast(Any, Escaping()), policy)(rollouts)
    assert good.explanation == r"ValueError: \ud800"
    assert r"reward escaping: ValueError: \udfff" in bad.error + bad.explanation


async def test_a_response_to_which_the_function_does_not_apply_has_no_reward() -> None:
    class Shortest:
        async def score(
            self, prompts: list[str], responses: list[str], columns: dict[str, list[Any]]
        ) -> list[RewardResult]:
            return [RewardResult(None if len(response) > 2 else 0.0) for response in responses]

    rollouts = [
        rollout_pb2.Rollout(response=text, columns=b'{"prompt": "p", "columns": {}}') for text in ("a", "abc")
    ]
    scores = await FunctionScorer("short", "reward-short-0", cast(Any, Shortest()))(rollouts)
    # Zero is a reward, and survives the wire as one.
    received = [scoring_pb2.Score.FromString(score.SerializeToString()) for score in scores]
    assert [read_reward(score) for score in received] == [0.0, None]
    assert [score.error for score in received] == ["", ""]


async def test_metrics_and_explanations_are_in_the_score() -> None:
    class Explains:
        async def score(
            self, prompts: list[str], responses: list[str], columns: dict[str, list[Any]]
        ) -> list[RewardResult]:
            return [RewardResult(0.5, {"right": 1.0}, "it is right"), RewardResult(None, {"right": 0.0})]

    rollouts = [
        rollout_pb2.Rollout(response=text, columns=b'{"prompt": "p", "columns": {}}') for text in ("a", "b")
    ]
    scores = await FunctionScorer("form", "reward-form-0", cast(Any, Explains()))(rollouts)
    assert [read_reward(score) for score in scores] == [0.5, None]
    assert [score.explanation for score in scores] == ["it is right", ""]
    assert score_detail_metrics(scores) == {"reward/form/right": 0.5}


@pytest.mark.parametrize("columns", [b"", b"[]", b"{}", b'{"prompt": "p"}', b"\xff"])
async def test_a_rollout_without_its_row_is_refused(columns: bytes) -> None:
    with pytest.raises(InvalidRequest, match=r'columns of sample 3 is .*it must be \{"prompt": TEXT'):
        await scorer()([rollout_pb2.Rollout(sample=3, columns=columns)])


class FailsOnX:
    """Function that raises, or hangs, for the response x."""

    def __init__(self, error: type[RewardError]) -> None:
        self.error = error

    async def score(
        self, prompts: list[str], responses: list[str], columns: dict[str, list[Any]]
    ) -> list[RewardResult]:
        if "x" in responses:
            raise self.error("reward exact: f of score.py failed")
        return [RewardResult(1.0)] * len(responses)


@pytest.mark.parametrize(("error", "kind"), [(RewardRaised, "error"), (RewardHung, "timeout")])
@pytest.mark.parametrize("policy", RewardErrorPolicy)
async def test_the_policy_decides_on_the_sample_that_fails(
    policy: RewardErrorPolicy, error: type[RewardError], kind: str
) -> None:
    rollouts = [
        rollout_pb2.Rollout(
            response=text, group_id="0/17", sample=index, columns=b'{"prompt": "p", "columns": {}}'
        )
        for index, text in enumerate("axb")
    ]
    failures: list[str] = []
    scorer = FunctionScorer("exact", "reward-exact-0", cast(Any, FailsOnX(error)), policy, failures.append)
    scores = await scorer(rollouts)
    assert [read_reward(score) for score in scores[::2]] == [1.0, 1.0]
    assert [(score.error, score.failure) for score in scores[::2]] == [("", ""), ("", "")]
    assert failures == [kind]
    failed = scores[1]
    cause = "reward exact: f of score.py failed"
    expected = {
        RewardErrorPolicy.RETRY: (None, cause, False, ""),
        RewardErrorPolicy.ZERO: (0.0, "", False, kind),
        RewardErrorPolicy.SKIP: (None, "", False, kind),
        RewardErrorPolicy.FAIL: (None, f"row 0/17, sample 1: {cause}; onError is Fail", True, ""),
    }
    assert (read_reward(failed), failed.error, failed.permanent, failed.failure) == expected[policy]
    assert failed.explanation == (cause if failed.failure else "")


@pytest.mark.parametrize("policy", RewardErrorPolicy)
@pytest.mark.parametrize("error", [BadReward, RewardNotImported])
async def test_no_policy_hides_an_error_of_the_function_itself(
    policy: RewardErrorPolicy, error: type[RewardError]
) -> None:
    rollout = rollout_pb2.Rollout(response="x", columns=b'{"prompt": "p", "columns": {}}')
    [score] = await FunctionScorer("exact", "r", cast(Any, FailsOnX(error)), policy)([rollout])
    assert score.permanent
    assert score.error


def test_failures_that_have_a_reward_are_counted_by_reward() -> None:
    scores = [
        scoring_pb2.Score(source="exact", failure="error"),
        scoring_pb2.Score(source="exact", failure="timeout"),
        scoring_pb2.Score(source="exact", failure="timeout"),
        scoring_pb2.Score(source="style"),
    ]
    assert reward_failure_metrics(scores) == {"reward/exact/errors": 1.0, "reward/exact/timeouts": 2.0}


class RecordsColumns:
    """Function that records the columns of its calls."""

    def __init__(self) -> None:
        self.columns: dict[str, list[Any]] = {}

    async def score(
        self, prompts: list[str], responses: list[str], columns: dict[str, list[Any]]
    ) -> list[RewardResult]:
        self.columns = columns
        return [RewardResult(0.0)] * len(responses)


def rollout_of(mask: list[int]) -> rollout_pb2.Rollout:
    batch = pack([[5] * len(mask)], ["0"])
    batch.token_columns["loss_mask"] = torch.tensor(mask, dtype=torch.uint8)
    return rollout_pb2.Rollout(
        sample=3, response="a", sequence=encode(batch), columns=b'{"prompt": "p", "columns": {"n": 7}}'
    )


@pytest.mark.parametrize("adds", [True, False])
async def test_verifiers_take_the_number_of_generated_tokens(adds: bool) -> None:
    function = RecordsColumns()
    scorer = FunctionScorer("r", "reward-r-0", cast(Any, function), adds_response_length=adds)
    # The second response has a turn of an environment in it.
    await scorer([rollout_of([0, 0, 1, 1, 1]), rollout_of([0, 1, 0, 1])])
    assert function.columns == {"n": [7, 7]} | ({RESPONSE_LENGTH: [3, 2]} if adds else {})


async def test_a_sequence_without_a_loss_mask_is_refused() -> None:
    rollout = rollout_of([0, 1])
    rollout.sequence.CopyFrom(encode(pack([[5, 5]], ["0"])))
    scorer = FunctionScorer("r", "reward-r-0", cast(Any, RecordsColumns()), adds_response_length=True)
    with pytest.raises(InvalidRequest, match="sequence of sample 3 has no loss mask"):
        await scorer([rollout])
