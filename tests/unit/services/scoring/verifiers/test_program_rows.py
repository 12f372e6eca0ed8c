"""Programs of responses, the tests of their rows, and the rewards of their verdicts."""

from typing import Any

import pytest

from kubealign.spec.sections.code_verifier import CodeVerifier
from kubealign_services.scoring.functions.results import RewardResult
from kubealign_services.scoring.sandbox.programs import InputOutputCase, TestedProgram
from kubealign_services.scoring.sandbox.runs import TestVerdict
from kubealign_services.scoring.verifiers.contract import UnusableRow
from kubealign_services.scoring.verifiers.program_rows import ProgramRows, reward_of_verdicts


def read(spec: dict[str, Any], response: str, row: dict[str, Any]) -> TestedProgram | None:
    return ProgramRows(CodeVerifier.model_validate(spec)).read(response, row)


@pytest.mark.parametrize(
    ("response", "program"),
    [
        ("x = 1", "x = 1"),
        ("Text.\n```python\nx = 1\n```\nBetter:\n```\nx = 2\n```\nDone.", "x = 2\n"),
        ("```python\n\n```", "\n"),
        ("", ""),
    ],
)
def test_the_last_block_is_the_program(response: str, program: str) -> None:
    assert read({}, response, {"tests": "assert x"}) == TestedProgram(program, ["assert x"])


def test_columns_of_statements() -> None:
    spec = {"setupColumn": "setup", "prefixColumn": "head", "entryPointColumn": "name"}
    row = {
        "tests": ["def check(f):\n    assert f(1)"],
        "setup": ["import math", "import sys"],
        "head": "def f(x):",
        "name": "f",
    }
    assert read(spec, "    return x", row) == TestedProgram(
        "    return x", row["tests"], "def f(x):\n", "import math\nimport sys\n", "f"
    )
    empty = {"tests": ["def check(f): pass"], "setup": None, "head": "", "name": "f"}
    assert read(spec, "y", empty) == TestedProgram("y", ["def check(f): pass"], entry_point="f")


def test_cases_as_a_list_or_as_json() -> None:
    spec = {"kind": "InputOutput", "prefixColumn": "head"}
    program = TestedProgram("print(1)", [InputOutputCase("", "1")], "import sys\n")
    row = {"head": "import sys\n", "tests": [{"input": "", "output": "1", "comment": "one"}]}
    assert read(spec, "print(1)", row) == program
    assert read(spec, "print(1)", row | {"tests": '[{"input": "", "output": "1"}]'}) == program


def test_a_row_without_tests() -> None:
    assert read({}, "x", {"tests": None}) is None
    assert reward_of_verdicts(None, [], 0.0, True) == RewardResult(None)


@pytest.mark.parametrize(
    ("spec", "row", "message"),
    [
        ({}, {"tests": []}, r"tests is \[\]; it must be a text or a list of texts of Python code"),
        ({}, {"tests": [1]}, r"tests is \[1\]; it must be a text"),
        ({}, {"tests": 5}, "tests is 5; it must be a text"),
        ({}, {"tests": ["assert ("]}, r"tests is 'assert \(', which is no Python code: "),
        (
            {"entryPointColumn": "name"},
            {"tests": "assert f(1)", "name": "f"},
            "with entryPointColumn it must define a function check",
        ),
        (
            {"entryPointColumn": "name"},
            {"tests": "def check(f): pass", "name": "f()"},
            r"name is 'f\(\)'; it must be the name of a function",
        ),
        ({"setupColumn": "setup"}, {"tests": "assert f(1)", "setup": 5}, "setup is 5; it must be a text"),
        (
            {"prefixColumn": "head"},
            {"tests": "assert f(1)", "head": [1]},
            r"head is \[1\]; it must be a text",
        ),
        ({"kind": "InputOutput"}, {"tests": "1 2"}, "tests is '1 2'; it must be a list of objects"),
        ({"kind": "InputOutput"}, {"tests": "[" * 100_000}, "it must be a list of objects"),
        (
            {"kind": "InputOutput"},
            {"tests": [{"input": 1, "output": "2"}]},
            "list of objects with the texts input",
        ),
        ({"kind": "InputOutput"}, {"tests": []}, "the texts input and output"),
    ],
)
def test_unusable_rows(spec: dict[str, Any], row: dict[str, Any], message: str) -> None:
    with pytest.raises(UnusableRow, match=message):
        read(spec, "x = 1", row)


def test_rewards_of_verdicts() -> None:
    program = TestedProgram("x", ["assert 1", "assert 2", "assert 3"])
    verdicts = [TestVerdict(True), TestVerdict(False, "took longer than 5 s"), TestVerdict(True)]
    metrics = {"tests.passed": 2, "tests.total": 3, "seconds": 1.5}
    text = "2 of 3 tests passed; test 2: took longer than 5 s"
    assert reward_of_verdicts(program, verdicts, 1.5, False) == RewardResult(0.0, metrics, text)
    assert reward_of_verdicts(program, verdicts, 1.5, True) == RewardResult(2 / 3, metrics, text)
    passed = reward_of_verdicts(program, [TestVerdict(True)] * 3, 1.0, False)
    assert (passed.reward, passed.explanation) == (1.0, "3 of 3 tests passed")
    nothing = reward_of_verdicts(TestedProgram(" \n", ["assert 1"]), [], 0.0, False)
    assert (nothing.reward, nothing.explanation) == (0.0, "no program in the response")
