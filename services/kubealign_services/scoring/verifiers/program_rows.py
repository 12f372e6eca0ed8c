"""Programs of responses with the tests of their rows, and the rewards of their verdicts. Pure."""

import ast
import json
from collections.abc import Mapping, Sequence
from typing import Any

from kubealign.spec.sections.code_verifier import CodeTestKind, CodeVerifier
from kubealign_services.scoring.functions.results import RewardResult
from kubealign_services.scoring.sandbox.programs import InputOutputCase, TestedProgram
from kubealign_services.scoring.sandbox.runs import TestVerdict
from kubealign_services.scoring.verifiers.contract import UnusableRow
from kubealign_services.scoring.verifiers.fenced_blocks import last_fenced_block

_SHOWN_CHARACTERS = 200
_CHECK_FUNCTION = "check"
_PYTHON_TEXTS = "it must be a text or a list of texts of Python code"


class ProgramRows:
    """Reads the columns that a spec names."""

    def __init__(self, spec: CodeVerifier) -> None:
        self._spec = spec

    def read(self, response: str, row: Mapping[str, Any]) -> TestedProgram | None:
        """Return the program of a response, which may be empty, with the tests of its row; None for a row
        without tests.

        Raises UnusableRow.
        """
        value = row[self._spec.tests_column]
        if value is None:
            return None
        prefix = self._text(row, self._spec.prefix_column)
        block = last_fenced_block(response)
        program = response if block is None else block
        if self._spec.kind is CodeTestKind.INPUT_OUTPUT:
            return TestedProgram(program, self._cases(value), prefix)
        entry_point = self._entry_point(row)
        setup = self._text(row, self._spec.setup_column)
        return TestedProgram(program, self._statements(value, entry_point), prefix, setup, entry_point)

    def _statements(self, value: Any, entry_point: str | None) -> list[str]:
        texts = [value] if isinstance(value, str) else value
        column = self._spec.tests_column
        if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
            raise UnusableRow(f"{column} is {_shown(value)}; {_PYTHON_TEXTS}")
        for text in texts:
            functions = _defined_functions(text, column)
            if entry_point is not None and _CHECK_FUNCTION not in functions:
                raise UnusableRow(
                    f"{column} is {_shown(text)}; with entryPointColumn it must define a function check"
                )
        return texts

    def _cases(self, value: Any) -> list[InputOutputCase]:
        column = self._spec.tests_column
        try:
            cases = json.loads(value) if isinstance(value, str) else value
        except (ValueError, RecursionError):
            cases = None
        if not isinstance(cases, list) or not cases or not all(_is_case(case) for case in cases):
            raise UnusableRow(
                f"{column} is {_shown(value)}; it must be a list of objects with the texts input and output"
            )
        return [InputOutputCase(case["input"], case["output"]) for case in cases]

    def _entry_point(self, row: Mapping[str, Any]) -> str | None:
        column = self._spec.entry_point_column
        name = None if column is None else row[column]
        if column is not None and not (isinstance(name, str) and name.isidentifier()):
            raise UnusableRow(f"{column} is {_shown(name)}; it must be the name of a function")
        return name

    def _text(self, row: Mapping[str, Any], column: str | None) -> str:
        """Return the code of an optional column: a text, or the lines of a list of texts."""
        value = None if column is None else row[column]
        lines = value if isinstance(value, list) else [value or ""]
        if not all(isinstance(line, str) for line in lines):
            raise UnusableRow(f"{column} is {_shown(value)}; {_PYTHON_TEXTS}")
        text = "\n".join(lines)
        return text if not text or text.endswith("\n") else f"{text}\n"


def reward_of_verdicts(
    program: TestedProgram | None, verdicts: Sequence[TestVerdict], seconds: float, counts_share: bool
) -> RewardResult:
    """Return the reward of a response.

    Args:
        program: The response's program; None: its row has no tests.
        verdicts: One verdict for each test; none for an empty program, which is not run.
        seconds: Time of the tests.
        counts_share: The reward is the share of tests passed, instead of 1 where all have passed.
    """
    if program is None:
        return RewardResult(None)
    total, passed = len(program.tests), sum(verdict.passed for verdict in verdicts)
    explanation = "no program in the response" if program.is_empty else f"{passed} of {total} tests passed"
    for number, verdict in enumerate(verdicts, 1):
        if not verdict.passed:
            explanation += f"; test {number}: {verdict.reason}"
    return RewardResult(
        passed / total if counts_share else float(passed == total),
        {"tests.passed": passed, "tests.total": total, "seconds": seconds},
        explanation,
    )


def _defined_functions(text: str, column: str) -> set[str]:
    """Return the functions that a test defines. Raises UnusableRow for what is no Python."""
    try:
        body = ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise UnusableRow(f"{column} is {_shown(text)}, which is no Python code: {error}") from error
    return {statement.name for statement in body if isinstance(statement, ast.FunctionDef)}


def _is_case(case: Any) -> bool:
    return isinstance(case, Mapping) and all(isinstance(case.get(key), str) for key in ("input", "output"))


def _shown(value: Any) -> str:
    return repr(value)[:_SHOWN_CHARACTERS]
