"""Verifiers in their processes, and in a job."""

import os
from pathlib import Path
from typing import Any

import pytest

from kubealign.spec.sections.verifiers import Verifier
from kubealign_services.scoring.functions.errors import RewardMissing, RewardRaised
from kubealign_services.scoring.functions.function_reward import FunctionReward
from kubealign_services.scoring.functions.protocol import RESPONSE_LENGTH
from kubealign_services.scoring.functions.results import RewardResult
from support.reward_results import scored

pytestmark = pytest.mark.timeout(120)


def reward(**document: Any) -> FunctionReward:
    return FunctionReward(Verifier.model_validate(document), 30.0, "right")


async def test_math_in_its_process() -> None:
    async with reward(math={}) as function:
        # The last comparison is stopped by a signal, which its library can set in a main thread only.
        rewards = await scored(
            function,
            ["p"] * 4,
            [r"\boxed{1/2}", "0.3", "?", "$9^{9^{9^{9}}}$"],
            {"answer": ["0.5", "0.5", None, "2^{100000000}"]},
        )
        assert rewards == [1.0, 0.0, None, 0.0]
        with pytest.raises(RewardRaised, match=r"right: verifier math .*no column 'answer'; there are: key"):
            await scored(function, ["p"], ["1"], {"key": ["1"]})


async def test_lengths_in_its_process() -> None:
    async with reward(length={"linear": {"fullTokens": 2, "zeroTokens": 4}}) as function:
        assert await scored(function, ["p"] * 3, ["a"] * 3, {RESPONSE_LENGTH: [2, 3, 4]}) == [1.0, 0.5, 0.0]


async def test_instructions_in_their_process() -> None:
    words = {"num_words": 2, "relation": "at least", "keywords": None}
    columns = {
        "instruction_id_list": [["punctuation:no_comma", "length_constraints:number_words"]] * 3,
        "kwargs": [[{"num_words": None, "relation": None, "keywords": None}, words]] * 2 + [None],
    }
    async with reward(instructions={"partial": True}) as function:
        first, second, third = await function.score(["p"] * 3, ["one two", "one,", "one"], columns)
        assert first == RewardResult(1.0, {"instructions.followed": 2, "instructions.total": 2})
        assert (second.reward, second.metrics["instructions.followed"]) == (0.0, 0)
        assert second.explanation == (
            "not followed: punctuation:no_comma (1 comma), "
            "length_constraints:number_words (at least 2; 1 word)"
        )
        assert third == RewardResult(None)
        unknown = {"instruction_id_list": [["no_comma"]], "kwargs": [[{}]]}
        with pytest.raises(
            RewardRaised,
            match=r"verifier instructions .*instruction_id_list\[0\] is 'no_comma'; it must be one of chan",
        ):
            await function.score(["p"], ["one"], unknown)


async def test_an_invalid_schema_ends_the_start() -> None:
    function = reward(jsonSchema={"schema": {"type": "number of things"}})
    with pytest.raises(RewardMissing, match="verifier jsonSchema cannot be used: not a JSON Schema"):
        await function.start()
    await function.close()


async def test_programs_in_their_process(tmp_path: Path) -> None:
    """Rewards, metrics and explanations of programs, one of which attacks the process of the reward."""
    async with reward(code={"partial": True, "setupColumn": "setup"}) as function:
        right = "Here it is:\n```python\ndef add(a, b):\n    return a + b + zero\n```\nDone."
        attack = f"import os\nos.kill(-1, 9)\nos.kill({os.getpid()}, 9)\nopen({str(tmp_path / 'x')!r}, 'w')"
        responses = [right, "```\ndef add(a, b):\n    return 3\n```", attack, " ", right]
        tests = ["assert add(1, 2) == 3", "assert add(2, 2) == 4"]
        columns = {"tests": [tests, tests, tests, tests, None], "setup": ["zero = 0"] * 5}
        results = await function.score(["p"] * 5, responses, columns)
    assert [result.reward for result in results] == [1.0, 0.5, 0.0, 0.0, None]
    assert [result.explanation for result in results[:2]] == [
        "2 of 2 tests passed",
        "1 of 2 tests passed; test 2: AssertionError: assert add(2, 2) == 4",
    ]
    assert results[2].explanation.startswith("0 of 2 tests passed; test 1: ")
    assert results[3].explanation == "no program in the response"
    assert [result.metrics.get("tests.passed") for result in results] == [2, 1, 0, 0, None]
    assert [result.metrics.get("tests.total") for result in results] == [2, 2, 2, 2, None]
    assert all(result.metrics["seconds"] >= 0 for result in results[:4])
    assert not (tmp_path / "x").exists()


async def test_no_program_runs_without_a_sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    function = reward(code={})
    with pytest.raises(
        RewardMissing, match="verifier code cannot be used: the program bwrap is not installed: "
    ):
        await function.start()
    await function.close()
