"""Arguments and results of a reward function in its process."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kubealign_services.scoring.functions.child_main import FunctionError, call_reward, load_function
from kubealign_services.scoring.functions.protocol import FunctionFailure
from support.reward_results import rewards

TWO = (["p", "q"], ["r", "s"])


def refusal(function: Callable[..., Any], columns: dict[str, list[Any]] | None = None) -> FunctionError:
    with pytest.raises(FunctionError) as caught:
        call_reward(function, *TWO, columns or {})
    return caught.value


@pytest.mark.parametrize(
    "given",
    [[1, 2.0], (1, 2), np.array([1.0, 2.0]), torch.tensor([1, 2]), [np.float32(1), torch.tensor(2.0)]],
)
def test_lists_arrays_and_their_scalars_are_numbers(given: Any) -> None:
    assert rewards(call_reward(lambda prompts, responses: given, *TWO, {})) == [1.0, 2.0]


def test_booleans_are_one_and_zero() -> None:
    results = call_reward(lambda prompts, responses, **columns: [True, False], *TWO, {"x": [0, 0]})
    assert rewards(results) == [1.0, 0.0]


async def _slow(response: str) -> float:
    await asyncio.sleep(0.001)
    return float(response == "s")


async def _each_at_once(prompts: list[str], responses: list[str]) -> list[float]:
    loops.append(asyncio.get_running_loop())
    return await asyncio.gather(*map(_slow, responses))


loops: list[asyncio.AbstractEventLoop] = []


def test_a_coroutine_function_is_run_to_its_end() -> None:
    """Check that all calls share an event loop, which clients of the function may be bound to."""
    for _ in range(2):
        assert rewards(call_reward(_each_at_once, *TWO, {})) == [0.0, 1.0]
    assert loops[0] is loops[1]


def test_an_error_of_a_coroutine_function_is_reported() -> None:
    async def raises(prompts: list[str], responses: list[str]) -> list[float]:
        await asyncio.sleep(0)
        raise ValueError("no answer")

    refused = refusal(raises)
    assert refused.kind is FunctionFailure.RAISED
    assert "raised on 2 responses: ValueError: no answer" in str(refused)


@pytest.mark.parametrize("given", [[None, 2], np.array([None, 2.0], dtype=object)])
def test_none_means_that_the_function_does_not_apply(given: Any) -> None:
    assert rewards(call_reward(lambda prompts, responses: given, *TWO, {})) == [None, 2.0]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([1.0], "returned 1 rewards for 2 responses"),
        ([1.0, float("nan")], "returned nan for response 1; a reward is a finite number"),
        ([float("-inf"), 1], "returned -inf for response 0"),
        ([10**400, 1], "returned inf for response 0"),
        (["1", 2], "returned '1' (str) for response 0, not a number"),
        ([[1], 2], "returned [1] (list) for response 0, not a number or None"),
        ([None, float("nan")], "returned nan for response 1; a reward is a finite number"),
        (None, "returned None (NoneType), not a list of 2 numbers"),
        (0.5, "returned 0.5 (float), not a list of 2 numbers"),
        (torch.zeros(2, 2), "returned [0.0, 0.0] (list) for response 0, not a number"),
        ([torch.zeros(2), 1], "not one number"),
    ],
)
def test_invalid_rewards_are_rejected_with_their_index(given: Any, message: str) -> None:
    refused = refusal(lambda prompts, responses: given)
    assert refused.kind is FunctionFailure.BAD
    assert message in str(refused)


def test_a_function_gets_the_columns_it_names() -> None:
    seen: dict[str, Any] = {}

    def named(prompts: list[str], responses: list[str], answer: list[int], *, weight: int = 3) -> list[float]:
        seen.update(answer=answer, weight=weight)
        return [0, 0]

    call_reward(named, *TWO, {"answer": [1, 2], "other": [5, 6]})
    assert seen == {"answer": [1, 2], "weight": 3}


def test_a_column_called_as_a_parameter_does_not_collide() -> None:
    seen: dict[str, Any] = {}

    def every(prompts: list[str], responses: list[str], **columns: Any) -> list[float]:
        seen.update(columns)
        return [0, 0]

    call_reward(every, *TWO, {"prompts": [1, 2], "responses": [3, 4], "answer": [5, 6]})
    assert seen == {"answer": [5, 6]}


def test_missing_column_is_named() -> None:
    refused = refusal(lambda prompts, responses, answer: [0, 0], {"reply": [1, 2]})
    assert (refused.kind, "'answer'" in str(refused), "reply" in str(refused)) == (
        FunctionFailure.BAD,
        True,
        True,
    )


def test_function_of_one_argument_is_rejected() -> None:
    assert "takes (response)" in str(refusal(lambda response: [0, 0]))


def test_exception_is_reported_with_its_line() -> None:
    def raises(prompts: list[str], responses: list[str]) -> list[float]:
        return [int("seven"), 1]

    refused = refusal(raises)
    assert refused.kind is FunctionFailure.RAISED
    assert "raised on 2 responses: ValueError: invalid literal" in str(refused)
    assert 'return [int("seven"), 1]' in str(refused)


def test_missing_function_lists_the_defined_ones(tmp_path: Path) -> None:
    file = tmp_path / "my_rewards.py"
    file.write_text(
        "from math import sqrt\ndef exact(p, r): return [1]\ndef _own(): ...\ndef short(p, r): return [0]\n"
    )
    assert load_function({"file": str(file), "name": "short"})("p", "r") == [0]
    with pytest.raises(FunctionError, match=r"is not defined there; it defines: exact, short"):
        load_function({"file": str(file), "name": "reward"})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import no_such_thing\n", "ModuleNotFoundError: No module named 'no_such_thing'"),
        ("def f(:\n", "SyntaxError"),
        ("raise SystemExit(3)\n", "SystemExit: 3"),
        ("x = 1 / 0\n", "line 1: x = 1 / 0"),
    ],
)
def test_a_file_that_cannot_be_imported(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "broken_reward.py"
    file.write_text(text)
    with pytest.raises(FunctionError) as caught:
        load_function({"file": str(file), "name": "f"})
    assert caught.value.kind is FunctionFailure.MISSING
    assert message in str(caught.value)


def test_missing_module_or_file_is_reported() -> None:
    with pytest.raises(
        FunctionError, match="cannot be imported: ModuleNotFoundError: No module named 'no_such_package'"
    ):
        load_function({"module": "no_such_package:f"})
    with pytest.raises(FunctionError, match=r"there is no file /nowhere/reward\.py"):
        load_function({"file": "/nowhere/reward.py", "name": "f"})
    assert load_function({"module": "math:fsum"})([1, 2]) == 3
