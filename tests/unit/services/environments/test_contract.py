"""Values of environments as JSON, and values that are refused."""

import math
from typing import Any

import pytest

from kubealign_services.environments.contract import (
    Observation,
    StepResult,
    observation_from_json,
    observation_to_json,
    result_from_json,
    result_to_json,
)
from kubealign_services.scoring.functions.results import InvalidResult

MESSAGES = ({"role": "user", "content": "a"}, {"role": "tool", "content": "b"})


@pytest.mark.parametrize("value", [Observation("a"), Observation(messages=MESSAGES), Observation()])
def test_observations_survive_the_way(value: Observation) -> None:
    assert observation_from_json(observation_to_json(value)) == value


def test_texts_and_nothing_are_observations() -> None:
    assert observation_from_json(observation_to_json("a")) == Observation("a")
    assert observation_from_json(observation_to_json(None)) == Observation()
    assert not Observation()
    assert Observation(messages=MESSAGES).plain_text() == "a\nb"


def test_results_survive_the_way() -> None:
    result = StepResult(Observation(messages=MESSAGES), 0.5, done=True, truncated=True, metrics={"n": 2.0})
    assert result_from_json(result_to_json(result)) == result
    assert result_from_json(result_to_json(StepResult("a", 1))) == StepResult(Observation("a"), 1.0)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (3, r"returned 3 \(int\), not a text or an Observation"),
        (Observation(text=3), r"returned the text 3 \(int\)"),  # type: ignore[arg-type]
        (Observation(messages=({"role": "user"},)), "its role and content are text"),
        (Observation("a", MESSAGES), "a text and messages; it has one of them"),
    ],
)
def test_other_observations_are_refused(value: Any, message: str) -> None:
    with pytest.raises(InvalidResult, match=message):
        observation_to_json(value)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("text", r"returned 'text' \(str\), not a StepResult"),
        (StepResult(reward=math.nan), "the reward nan; a reward is a finite number"),
        (StepResult(reward=None), "the reward None; a reward is a finite number"),  # type: ignore[arg-type]
        (StepResult(reward="1"), r"returned '1' \(str\) for response 0, not a number"),  # type: ignore[arg-type]
        (StepResult(metrics={"mean": 1.0}), "is none of .*mean"),
        (StepResult(5), "not a text or an Observation"),  # type: ignore[arg-type]
    ],
)
def test_other_results_are_refused(value: Any, message: str) -> None:
    with pytest.raises(InvalidResult, match=message):
        result_to_json(value)
