"""Programs as responses: each runs the tests of its row in sandboxes."""

import ast
import json
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

from kubealign.spec.sections.code_verifier import CodeTestKind, CodeVerifier
from kubealign_services.scoring.functions.results import RewardResult
from kubealign_services.scoring.sandbox.bubblewrap import Bubblewrap
from kubealign_services.scoring.sandbox.limits import Limits
from kubealign_services.scoring.sandbox.runs import Check, TestVerdict, run_check, run_script
from kubealign_services.scoring.verifiers.contract import UnusableRow
from kubealign_services.scoring.verifiers.fenced_blocks import last_fenced_block

_SHOWN_CHARACTERS = 200
_CHECK_FUNCTION = "check"
_PYTHON_TEXTS = "it must be a text or a list of texts of Python code"

#: Runs one test of a program within limits.
_Test = Callable[[str, Limits], TestVerdict]


class ProgramTests:
    """1 for a response whose program passes all tests of its row, else 0, or the share that it passes."""

    def __init__(self, spec: CodeVerifier) -> None:
        """Raises SandboxUnavailable where this machine cannot isolate programs."""
        self._spec = spec
        self._bubblewrap = Bubblewrap()
        # A sandbox dies with the thread that has started it, so the threads stay.
        self._threads = ThreadPoolExecutor(spec.parallel_tests, "sandbox")
        self._limits = Limits(
            seconds=spec.seconds_per_test,
            memory_bytes=spec.memory_mib << 20,
            output_bytes=spec.output_bytes,
            processes=spec.processes,
        )

    def score(self, response: str, row: Mapping[str, Any]) -> RewardResult:
        """Raises UnusableRow where the row's tests cannot be used, and SandboxFailed."""
        value = row[self._spec.tests_column]
        if value is None:
            return RewardResult(None)
        prefix = self._text(row, self._spec.prefix_column)
        if self._spec.kind is CodeTestKind.INPUT_OUTPUT:
            tests = self._input_output_tests(value)
        else:
            tests = self._checks(value, prefix, row)
        program = _program(response)
        if not program.strip():
            return _result([TestVerdict(False)] * len(tests), False, 0.0, "no program in the response")
        start = time.monotonic()
        deadline = start + self._spec.seconds_per_response
        verdicts = list(self._threads.map(lambda test: self._run(test, prefix + program, deadline), tests))
        return _result(verdicts, self._spec.partial, time.monotonic() - start)

    def _run(self, test: _Test, program: str, deadline: float) -> TestVerdict:
        seconds = min(self._limits.seconds, deadline - time.monotonic())
        if seconds <= 0:
            return TestVerdict(
                False, f"not run: all tests took longer than {self._spec.seconds_per_response:g} s"
            )
        return test(program, replace(self._limits, seconds=seconds))

    def _checks(self, value: Any, prefix: str, row: Mapping[str, Any]) -> list[_Test]:
        texts = [value] if isinstance(value, str) else value
        column = self._spec.tests_column
        if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
            raise UnusableRow(f"{column} is {_shown(value)}; {_PYTHON_TEXTS}")
        entry_point = self._entry_point(row)
        setup = self._text(row, self._spec.setup_column)
        for text in texts:
            functions = _defined_functions(text, column)
            if entry_point is not None and _CHECK_FUNCTION not in functions:
                raise UnusableRow(
                    f"{column} is {_shown(text)}; with entryPointColumn it must define a function check"
                )
        checks = [Check(text, setup, prefix, entry_point) for text in texts]
        return [partial(run_check, self._bubblewrap, check) for check in checks]

    def _input_output_tests(self, value: Any) -> list[_Test]:
        column = self._spec.tests_column
        try:
            cases = json.loads(value) if isinstance(value, str) else value
        except ValueError:
            cases = None
        if not isinstance(cases, list) or not cases or not all(_is_case(case) for case in cases):
            raise UnusableRow(
                f"{column} is {_shown(value)}; it must be a list of objects with the texts input and output"
            )
        return [partial(run_script, self._bubblewrap, case["input"], case["output"]) for case in cases]

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


def _program(response: str) -> str:
    block = last_fenced_block(response)
    return response if block is None else block


def _result(
    verdicts: list[TestVerdict], counts_share: bool, seconds: float, explanation: str | None = None
) -> RewardResult:
    passed, total = sum(verdict.passed for verdict in verdicts), len(verdicts)
    if explanation is None:
        explanation = f"{passed} of {total} tests passed"
        for number, verdict in enumerate(verdicts, 1):
            if not verdict.passed:
                explanation += f"; test {number}: {verdict.reason}"
    metrics = {"tests.passed": passed, "tests.total": total, "seconds": seconds}
    return RewardResult(passed / total if counts_share else float(passed == total), metrics, explanation)


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
