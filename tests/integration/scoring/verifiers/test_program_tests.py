"""The verifier of programs: responses and rows of each form."""

from collections.abc import Mapping
from typing import Any

import pytest

from kubealign.spec.sections.verifiers import Verifier
from kubealign_services.scoring.functions.results import RewardResult
from kubealign_services.scoring.verifiers.contract import UnusableRow
from kubealign_services.scoring.verifiers.factory import make_verifier
from kubealign_services.scoring.verifiers.program_tests import ProgramTests

pytestmark = pytest.mark.timeout(120)

ADD = "def add(a, b):\n    return a + b\n"


def results(spec: Mapping[str, Any], *cases: tuple[str, Mapping[str, Any]]) -> list[RewardResult]:
    verifier = make_verifier(Verifier.model_validate({"code": spec}))
    assert isinstance(verifier, ProgramTests)
    return verifier.score_all([response for response, _ in cases], [row for _, row in cases])


def test_the_last_block_is_the_program() -> None:
    row = {"tests": ["assert add(1, 2) == 3"]}
    wrong = "```python\ndef add(a, b):\n    return 0\n```"
    right = f"```python3\n{ADD}```"
    cases = [
        (ADD, 1.0),
        (f"Text.\n{wrong}\nBetter:\n{right}\nDone.", 1.0),
        (f"{right}\n{wrong}", 0.0),
        (f"```py title=x\n{ADD}```", 0.0),
        ("I cannot.", 0.0),
        ("```python\n\n```", 0.0),
        (" \n", 0.0),
    ]
    scores = results({}, *((response, row) for response, _ in cases))
    assert [score.reward for score in scores] == [reward for _, reward in cases]
    assert scores[4].explanation.startswith("0 of 1 tests passed; test 1: SyntaxError: ")
    assert [score.explanation for score in scores[5:]] == ["no program in the response"] * 2


def test_partial_rewards_of_lists_of_assertions() -> None:
    row = {"test_list": ["assert add(1, 2) == 3", "assert add(1, 2) == 4", "assert add('a', 'b') == 'ab'"]}
    (whole,) = results({"testsColumn": "test_list"}, (ADD, row))
    (part,) = results({"testsColumn": "test_list", "partial": True}, (ADD, row))
    assert (whole.reward, part.reward) == (0.0, 2 / 3)
    assert whole.explanation == "2 of 3 tests passed; test 2: AssertionError: assert add(1, 2) == 4"
    assert (whole.metrics["tests.passed"], whole.metrics["tests.total"]) == (2, 3)


def test_rows_in_the_form_of_mbpp() -> None:
    spec = {"testsColumn": "test_list", "setupColumn": "test_setup_code"}
    row = {"test_list": ["assert area(2) == math.pi * 4"], "test_setup_code": "import math"}
    imports = {**row, "test_setup_code": ["import math", "import sys"]}
    program = "```python\ndef area(r):\n    return math.pi * r ** 2\n```"
    empty = {"test_list": ["assert area(2) == 12"], "test_setup_code": ""}
    scores = results(spec, (program, row), (program, imports), ("def area(r):\n    return 6 * r", empty))
    assert [score.reward for score in scores] == [1.0, 1.0, 1.0]


def test_rows_in_the_form_of_humaneval() -> None:
    spec = {"testsColumn": "test", "prefixColumn": "prompt", "entryPointColumn": "entry_point"}
    row = {
        "prompt": 'def double(n: int) -> int:\n    """Return twice n."""',
        "test": "def check(candidate):\n    assert candidate(2) == 4\n    assert candidate(-1) == -2\n",
        "entry_point": "double",
    }
    scores = results(
        spec,
        ("    return 2 * n\n", row),
        ("    return n + 2\n", row),
        ("```python\ndef double(n):\n    return n + n\n```", row),
    )
    assert [score.reward for score in scores] == [1.0, 0.0, 1.0]
    assert scores[1].explanation.endswith("test 1: AssertionError: assert candidate(-1) == -2")


def test_inputs_and_outputs() -> None:
    cases = [{"input": "1 2\n", "output": "3\n"}, {"input": "5 5", "output": "11"}]
    program = "print(sum(map(int, input().split())))"
    texts = '[{"input": "1 1", "output": "2"}]'
    spec = {"kind": "InputOutput", "partial": True}
    scores = results(spec, (program, {"tests": cases}), (program, {"tests": texts}))
    assert [score.reward for score in scores] == [0.5, 1.0]
    assert scores[0].explanation == "1 of 2 tests passed; test 2: printed '10'; expected '11'"


def test_a_row_without_tests_has_no_reward() -> None:
    assert results({}, (ADD, {"tests": None})) == [RewardResult(None)]


def test_the_limits_of_the_spec() -> None:
    spec = {"kind": "InputOutput", "secondsPerTest": 1, "memoryMib": 64, "outputBytes": 10, "processes": 2}
    row = {"tests": [{"input": "", "output": ""}]}
    scores = results(
        spec,
        ("while True: pass", row),
        ("data = bytes(2**27)", row),
        ("print('x' * 11)", row),
        ("import os\nfor _ in range(2):\n    if os.fork() == 0: os.read(os.pipe()[0], 1)", row),
    )
    faults = [
        "took longer than 1 s",
        "used more than 64 MiB",
        "printed more than 10 bytes",
        "BlockingIOError: [Errno 11] Resource temporarily unavailable",
    ]
    prefix = "0 of 1 tests passed; test 1: "
    assert [score.explanation.removeprefix(prefix) for score in scores] == faults


def test_the_time_of_a_response() -> None:
    """The second test may take what the first one has left; then none is run."""
    spec = {"secondsPerTest": 1, "secondsPerResponse": 1, "parallelTests": 1}
    (score,) = results(spec, ("while True: pass", {"tests": ["assert True"] * 3}))
    first, second, third = score.explanation.removeprefix("0 of 3 tests passed; ").split("; ")
    assert first == "test 1: took longer than 1 s"
    assert {second, third} == {f"test {n}: not run: the tests took longer than 1 s" for n in (2, 3)}


def test_no_program_runs_where_a_row_is_unusable() -> None:
    with pytest.raises(UnusableRow, match="tests is 5; it must be a text"):
        results({}, (ADD, {"tests": ["assert add(1, 2) == 3"]}), (ADD, {"tests": 5}))
