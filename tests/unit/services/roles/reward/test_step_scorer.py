"""Scorer of a function that rewards the steps of a response."""

from collections.abc import Sequence
from typing import Any, cast

import pytest
import torch

from kubealign.spec.sections.score_calls import RewardErrorPolicy
from kubealign.v1 import rollout_pb2
from kubealign_services.batch.codec import encode
from kubealign_services.batch.packed import pack
from kubealign_services.roles.reward.function_scorer import FunctionScorer
from kubealign_services.roles.reward.step_scorer import StepScorer
from kubealign_services.roles.reward.step_tokens import StepDivision
from kubealign_services.scoring.functions.results import RewardResult
from kubealign_services.scoring.worker import read_reward

#: One character for each token id, as a tokenizer of characters has.
ALPHABET = "ab;$"


def decode(tokens: Sequence[int]) -> str:
    return "".join(ALPHABET[token] for token in tokens)


def rollout(response: str) -> rollout_pb2.Rollout:
    """A prompt of two tokens, the response and an end token."""
    tokens = [0, 1, *(ALPHABET.index(character) for character in response), 3]
    batch = pack([tokens], ["0#0"])
    batch.token_columns["loss_mask"] = torch.tensor([0, 0] + [1] * (len(tokens) - 2), dtype=torch.uint8)
    return rollout_pb2.Rollout(
        group_id="0", response=response, columns=b'{"prompt": "p", "columns": {}}', sequence=encode(batch)
    )


class Function:
    """Returns results and records the texts of the steps that it receives."""

    def __init__(self, *results: RewardResult) -> None:
        self._results = results
        self.steps: list[list[str]] = []

    async def score(
        self, prompts: list[str], responses: list[str], columns: dict[str, list[Any]]
    ) -> list[RewardResult]:
        self.steps = columns["steps"]
        return list(self._results)


def scorer(function: Function, policy: RewardErrorPolicy = RewardErrorPolicy.RETRY) -> StepScorer:
    return StepScorer(StepDivision(";", decode), "prm", "reward-prm-0", cast(Any, function), policy)


async def test_each_reward_is_at_the_last_token_of_its_step() -> None:
    function = Function(RewardResult(2.0, steps=(0.5, 1.5)), RewardResult(7.0, steps=()), RewardResult(None))
    scores = await scorer(function)([rollout("aa;b"), rollout(""), rollout("a")])
    assert function.steps == [["aa", "b"], [], ["a"]]
    # The prompt has two tokens: the separator is token 4, the end token 6.
    assert [(step.token, step.reward) for step in scores[0].steps] == [(4, 0.5), (6, 1.5)]
    assert [read_reward(score) for score in scores] == [2.0, 7.0, None]
    assert not scores[1].steps
    assert not scores[2].steps


@pytest.mark.parametrize(
    ("result", "count"), [(RewardResult(1.0, steps=(1.0,)), "1 steps"), (RewardResult(1.0), "no steps")]
)
async def test_a_wrong_number_of_steps_is_the_failure_of_its_sample(result: RewardResult, count: str) -> None:
    good = RewardResult(1.0, steps=(1.0,))
    failed, scored = await scorer(Function(result, good))([rollout("a;b"), rollout("a")])
    assert (
        f"reward prm: returned {count} for a response of 2, which the separator ';' divides" in failed.error
    )
    assert not failed.permanent
    assert (scored.reward, scored.error) == (1.0, "")
    skipped, _ = await scorer(Function(result, good), RewardErrorPolicy.SKIP)([rollout("a;b"), rollout("a")])
    assert (skipped.failure, read_reward(skipped), list(skipped.steps)) == ("error", None, [])


async def test_steps_are_refused_where_the_job_has_none() -> None:
    class Plain:
        async def score(self, prompts: list[str], responses: list[str], columns: Any) -> list[RewardResult]:
            return [RewardResult(1.0, steps=(1.0,))]

    (score,) = await FunctionScorer("prm", "reward-prm-0", cast(Any, Plain()))([rollout("a")])
    assert "returned steps, which the job does not ask for: set steps" in score.error
