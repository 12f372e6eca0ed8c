"""Scorer that calls a reward function."""

from typing import Any, cast

import pytest

from kubealign.v1 import rollout_pb2, scoring_pb2
from kubealign_services.roles.reward.function_scorer import FunctionScorer
from kubealign_services.runtime.rpc.errors import InvalidRequest
from kubealign_services.scoring.worker import read_reward


class LengthReward:
    """Scores a response by its length, as a function in a child process would."""

    async def score(
        self, prompts: list[str], responses: list[str], columns: dict[str, list[Any]]
    ) -> list[float]:
        return [float(len(response)) for response in responses]


def scorer() -> FunctionScorer:
    return FunctionScorer("length", "reward-length-0", cast(Any, LengthReward()))


async def test_rollouts_are_scored_in_order() -> None:
    rollouts = [
        rollout_pb2.Rollout(response=text, columns=b'{"prompt": "p", "columns": {}}') for text in ("a", "abc")
    ]
    assert [score.reward for score in await scorer()(rollouts)] == [1.0, 3.0]


async def test_a_response_to_which_the_function_does_not_apply_has_no_reward() -> None:
    class Shortest:
        async def score(
            self, prompts: list[str], responses: list[str], columns: dict[str, list[Any]]
        ) -> list[float | None]:
            return [None if len(response) > 2 else 0.0 for response in responses]

    rollouts = [
        rollout_pb2.Rollout(response=text, columns=b'{"prompt": "p", "columns": {}}') for text in ("a", "abc")
    ]
    scores = await FunctionScorer("short", "reward-short-0", cast(Any, Shortest()))(rollouts)
    # Zero is a reward, and survives the wire as one.
    received = [scoring_pb2.Score.FromString(score.SerializeToString()) for score in scores]
    assert [read_reward(score) for score in received] == [0.0, None]
    assert [score.error for score in received] == ["", ""]


@pytest.mark.parametrize("columns", [b"", b"[]", b"{}", b'{"prompt": "p"}', b"\xff"])
async def test_a_rollout_without_its_row_is_refused(columns: bytes) -> None:
    with pytest.raises(InvalidRequest, match=r'columns of sample 3 is .*it must be \{"prompt": TEXT'):
        await scorer()([rollout_pb2.Rollout(sample=3, columns=columns)])
