"""Programs as responses: each runs the tests of its row in sandboxes."""

import ast
import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
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

    def score_all(self, responses: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> list[RewardResult]:
        """Return one result per response; parallelTests of their tests run at once.

        Raises UnusableRow where the tests of a row cannot be used, before any runs, and SandboxFailed.
        """
        runs = [self._run(response, row) for response, row in zip(responses, rows, strict=True)]
        futures = [[self._threads.submit(run.verdict, test) for test in run.tests] for run in runs]
        try:
            return [
                run.result([future.result() for future in verdicts], self._spec.partial)
                for run, verdicts in zip(runs, futures, strict=True)
            ]
        finally:
            for verdicts in futures:
                for future in verdicts:
                    future.cancel()

    def _run(self, response: str, row: Mapping[str, Any]) -> "_ResponseRun":
        value = row[self._spec.tests_column]
        if value is None:
            return _ResponseRun("", [], 0, self._limits, self._spec.seconds_per_response)
        prefix = self._text(row, self._spec.prefix_column)
        if self._spec.kind is CodeTestKind.INPUT_OUTPUT:
            tests = self._input_output_tests(value)
        else:
            tests = self._checks(value, prefix, row)
        program = _program(response)
        return _ResponseRun(
            prefix + program,
            tests if program.strip() else [],
            len(tests),
            self._limits,
            self._spec.seconds_per_response,
        )

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


class _ResponseRun:
    """Tests of one response, whose time begins with the first of them.

    Args:
        tests: None of them for a response without a program.
        total: Tests of the row; 0 where it has none.
    """

    def __init__(self, program: str, tests: list[_Test], total: int, limits: Limits, seconds: float) -> None:
        self.tests = tests
        self._program = program
        self._total = total
        self._limits = limits
        self._seconds = seconds
        self._lock = threading.Lock()
        self._start: float | None = None
        self._end = 0.0

    def verdict(self, test: _Test) -> TestVerdict:
        """Run a test. Raises SandboxFailed."""
        with self._lock:
            if self._start is None:
                self._start = time.monotonic()
            remaining = self._start + self._seconds - time.monotonic()
        if remaining <= 0:
            return TestVerdict(False, f"not run: the tests took longer than {self._seconds:g} s")
        limits = replace(self._limits, seconds=min(self._limits.seconds, remaining))
        verdict = test(self._program, limits)
        self._end = time.monotonic()
        return verdict

    def result(self, verdicts: list[TestVerdict], counts_share: bool) -> RewardResult:
        """Return the reward of the verdicts of all tests."""
        if self._total == 0:
            return RewardResult(None)
        passed = sum(verdict.passed for verdict in verdicts)
        explanation = (
            f"{passed} of {self._total} tests passed" if self.tests else "no program in the response"
        )
        for number, verdict in enumerate(verdicts, 1):
            if not verdict.passed:
                explanation += f"; test {number}: {verdict.reason}"
        return RewardResult(
            passed / self._total if counts_share else float(passed == self._total),
            {
                "tests.passed": passed,
                "tests.total": self._total,
                "seconds": self._end - self._start if self._start is not None else 0.0,
            },
            explanation,
        )


def _program(response: str) -> str:
    block = last_fenced_block(response)
    return response if block is None else block


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
