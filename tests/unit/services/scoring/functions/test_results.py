"""Results of reward functions: their forms, and those that are refused."""

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubealign_services.scoring.functions.results import (
    MAX_EXPLANATION,
    InvalidResult,
    RewardResult,
    check_results,
)


def test_each_response_may_have_metrics_and_an_explanation() -> None:
    returned = [
        {"reward": 1, "metrics": {"tests.passed": np.float32(3), "compiles": True}, "explanation": "3 of 3"},
        {"reward": None},
        {"reward": 0.5, "metrics": None, "explanation": None},
        RewardResult(2.0, explanation="as it is"),
        None,
        4,
    ]
    assert check_results(returned, 6) == [
        RewardResult(1.0, {"tests.passed": 3.0, "compiles": 1.0}, "3 of 3"),
        RewardResult(None),
        RewardResult(0.5),
        RewardResult(2.0, explanation="as it is"),
        RewardResult(None),
        RewardResult(4.0),
    ]


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ({}, "an object with no key 'reward' for response 0; its keys are reward, and maybe metrics"),
        ({"reward": 1, "metric": {}}, "an object with the key 'metric' for response 0"),
        ({"reward": "1"}, "returned '1' (str) for response 0, not a number"),
        ({"reward": math.nan}, "returned nan for response 0; a reward is a finite number"),
        ({"reward": 1, "metrics": [1]}, "the metrics [1] (list) for response 0, not names with numbers"),
        ({"reward": 1, "metrics": {"a": "b"}}, "returned 'b' (str) for metric a for response 0"),
        ({"reward": 1, "metrics": {"a": None}}, "returned None (NoneType) for metric a for response 0"),
        ({"reward": 1, "metrics": {"a": math.inf}}, "returned inf for metric a for response 0"),
        ({"reward": 1, "metrics": {"mean": 1}}, "a metric named 'mean' (str) for response 0"),
        ({"reward": 1, "metrics": {"a/b": 1}}, "a metric named 'a/b' (str) for response 0"),
        ({"reward": 1, "metrics": {1: 1}}, "a metric named 1 (int) for response 0"),
        ({"reward": 1, "metrics": {str(i): 1 for i in range(65)}}, "returned 65 metrics for response 0"),
        ({"reward": 1, "explanation": 7}, "the explanation 7 (int) for response 0, not a text"),
    ],
)
def test_other_objects_are_refused(result: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidResult) as caught:
        check_results([result], 1)
    assert message in str(caught.value)


def test_long_explanations_are_cut() -> None:
    [result] = check_results([{"reward": 1, "explanation": "x" * (MAX_EXPLANATION + 1)}], 1)
    assert result.explanation == "x" * (MAX_EXPLANATION - 1) + "\N{HORIZONTAL ELLIPSIS}"
    assert check_results([RewardResult(1, explanation="x" * 9999)], 1) == [result]
    exact = "x" * MAX_EXPLANATION
    assert check_results([{"reward": 1, "explanation": exact}], 1)[0].explanation == exact


_numbers = st.floats(allow_nan=False, allow_infinity=False)
_metrics = st.dictionaries(st.from_regex(r"m[a-z]{1,5}", fullmatch=True), _numbers)


@given(st.none() | _numbers, _metrics, st.text())
def test_results_survive_json(reward: float | None, metrics: dict[str, float], explanation: str) -> None:
    result = RewardResult(reward, metrics, explanation)
    assert RewardResult.from_json(json.loads(json.dumps(result.to_json()))) == result


def test_steps_have_their_sum_as_the_reward_that_is_missing() -> None:
    returned = [{"steps": [0.5, np.float32(1)]}, {"steps": (), "reward": 3}, {"steps": [0.1] * 10}]
    expected = [
        RewardResult(1.5, steps=(0.5, 1.0)),
        RewardResult(3.0, steps=()),
        RewardResult(1.0, steps=(0.1,) * 10),
    ]
    assert check_results(returned, 3) == expected
    assert [RewardResult.from_json(json.loads(json.dumps(each.to_json()))) for each in expected] == expected


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ({"steps": 1.0}, r"the steps 1.0 \(float\) for response 0, not a list of numbers"),
        ({"steps": [1.0, math.nan]}, "returned nan for step 1 for response 0; a reward is a finite number"),
        ({"steps": ["good"]}, r"'good' \(str\) for step 0 for response 0, not a number"),
        ({"steps": [None]}, "for step 0 for response 0, not a number"),
        ({"steps": [1.0], "reward": None}, "returned steps, but the reward None for response 0"),
        ({"steps": [1.0] * 4097}, "4097 steps for response 0; at most 4096"),
    ],
)
def test_steps_that_are_no_finite_numbers_are_refused(value: Any, problem: str) -> None:
    with pytest.raises(InvalidResult, match=problem):
        check_results([value], 1)
