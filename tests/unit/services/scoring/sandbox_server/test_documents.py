"""Documents of the sandbox service, as its OpenAPI document has them."""

import json
from copy import deepcopy
from typing import Any

import pytest

from kubealign.spec.sections.code_verifier import CodeVerifier
from kubealign_services.scoring.sandbox.limits import Limits
from kubealign_services.scoring.sandbox.programs import InputOutputCase, TestedProgram
from kubealign_services.scoring.sandbox.runs import TestVerdict
from kubealign_services.scoring.sandbox_server.documents import (
    BadDocument,
    ProgramLimits,
    VerdictsDocument,
    parse_program,
    parse_verdicts,
    program_document,
)
from support.sandbox_service import LIMITS, conforms

STATEMENTS: dict[str, Any] = {"kind": "python", "program": "x = 1", "tests": ["assert x"], "limits": LIMITS}
CASES: dict[str, Any] = {
    "kind": "inputOutput",
    "program": "print(1)",
    "tests": [{"input": "", "output": "1"}],
    "limits": LIMITS,
}


def changed(document: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """Return a copy with a value at a path such as limits.memoryMib; `...` removes it."""
    copy = deepcopy(document)
    *parents, last = path.split(".")
    holder: Any = copy
    for parent in parents:
        holder = holder[int(parent) if parent.isdecimal() else parent]
    if value is ...:
        del holder[last]
    else:
        holder[int(last) if last.isdecimal() else last] = value
    return copy


@pytest.mark.parametrize(
    "program",
    [
        TestedProgram("x", ["assert x"]),
        TestedProgram("x", ["def check(f): pass", "assert y"], "import a\n", "b = 1\n", "f"),
        TestedProgram("x", [InputOutputCase("1\n", "2"), InputOutputCase("", "")], "import a\n"),
    ],
)
def test_a_program_survives_the_request(program: TestedProgram) -> None:
    spec = CodeVerifier.model_validate({"secondsPerTest": 2.5, "memoryMib": 128, "processes": 3})
    document = program_document(program, spec)
    assert conforms("Program", document)
    received = parse_program(json.dumps(document).encode())
    assert received.tested_program == program
    assert received.limits.per_test == Limits(2.5, 128 << 20, 65536, 3)
    assert received.limits.seconds_per_response == 20.0


@pytest.mark.parametrize(
    "document",
    [
        STATEMENTS,
        CASES,
        STATEMENTS | {"prefix": "a", "setup": "b", "entryPoint": "f"},
        STATEMENTS | {"entryPoint": None},
        CASES | {"prefix": "a"},
    ],
)
def test_both_admit(document: dict[str, Any]) -> None:
    assert conforms("Program", document)
    parse_program(json.dumps(document).encode())


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ([], r"the document: \[\]: must be an object"),
        (changed(STATEMENTS, "kind", ...), "kind: null: must be one of python, inputOutput"),
        (STATEMENTS | {"kind": "Python"}, 'kind: "Python": must be one of python, inputOutput'),
        (changed(STATEMENTS, "program", ...), "program: is required"),
        (STATEMENTS | {"program": ""}, 'program: "": String should have at least 1 character'),
        (STATEMENTS | {"program": 1}, "program: 1: Input should be a valid string"),
        (STATEMENTS | {"tests": []}, r"tests: \[\]: List should have at least 1 item"),
        (STATEMENTS | {"tests": "assert x"}, 'tests: "assert x": Input should be a valid list'),
        (STATEMENTS | {"tests": ["a", 1]}, r"tests\[1\]: 1: Input should be a valid string"),
        (STATEMENTS | {"tests": CASES["tests"]}, r"tests\[0\]: .*: Input should be a valid string"),
        (CASES | {"tests": ["assert x"]}, r'tests\[0\]: "assert x": must be an object'),
        (changed(CASES, "tests.0.output", ...), r"tests\[0\]\.output: is required"),
        (changed(CASES, "tests.0.output", 1), r"tests\[0\]\.output: 1: Input should be a valid string"),
        (CASES | {"setup": "a"}, "setup: is no field of the contract"),
        (CASES | {"entryPoint": "f"}, "entryPoint: is no field of the contract"),
        (STATEMENTS | {"columns": {}}, "columns: is no field of the contract"),
        (changed(STATEMENTS, "limits", ...), "limits: is required"),
        (changed(STATEMENTS, "limits.memoryMib", ...), r"limits\.memoryMib: is required"),
        (changed(STATEMENTS, "limits.memoryMib", 63), r"limits\.memoryMib: 63: .* 64"),
        (changed(STATEMENTS, "limits.memoryMib", 64.5), r"limits\.memoryMib: 64\.5: .* integer"),
        (changed(STATEMENTS, "limits.outputBytes", 0), r"limits\.outputBytes: 0: .* 1"),
        (changed(STATEMENTS, "limits.processes", 0), r"limits\.processes: 0: .* 1"),
        (changed(STATEMENTS, "limits.secondsPerTest", 0), r"limits\.secondsPerTest: 0: .*greater than 0"),
        (changed(STATEMENTS, "limits.secondsPerTest", "5"), r'limits\.secondsPerTest: "5": .* number'),
        (changed(STATEMENTS, "limits.secondsPerResponse", -1), r"limits\.secondsPerResponse: -1: .* 0"),
        (changed(STATEMENTS, "limits.cpus", 1), r"limits\.cpus: is no field of the contract"),
    ],
)
def test_both_refuse(document: Any, message: str) -> None:
    assert not conforms("Program", document)
    with pytest.raises(BadDocument, match=message):
        parse_program(json.dumps(document).encode())


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"{", "the body is no JSON: "),
        (b"\xff", "the body is no JSON: "),
        (b"[" * 100_000, "the body is no JSON: "),
        (json.dumps(STATEMENTS | {"program": "\ud800"}).encode(), "program: .*(U|u)nicode"),
        (json.dumps(changed(CASES, "tests.0.input", "\ud800")).encode(), r"tests\[0\]\.input: .*Unicode"),
        (json.dumps(STATEMENTS | {"prefix": "\ud800"}).encode(), "prefix: .*Unicode"),
        (json.dumps(STATEMENTS | {"entryPoint": "f()"}).encode(), r'entryPoint: "f\(\)": must be the name'),
        (json.dumps(changed(STATEMENTS, "limits.secondsPerTest", float("inf"))).encode(), "finite number"),
    ],
)
def test_bodies_that_a_schema_cannot_refuse(body: bytes, message: str) -> None:
    with pytest.raises(BadDocument, match=message):
        parse_program(body)


def test_verdicts_survive_the_answer() -> None:
    verdicts = [TestVerdict(True), TestVerdict(False, "AssertionError: assert x")]
    document = VerdictsDocument.of(verdicts, 1.25).model_dump(by_alias=True)
    assert conforms("Verdicts", document)
    answer = parse_verdicts(json.loads(json.dumps(document)), 2)
    assert (answer.test_verdicts, answer.seconds) == (verdicts, 1.25)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (None, "the document: null: must be an object"),
        ({"verdicts": [], "seconds": 0}, "verdicts: has 0 entries for 1 tests"),
        ({"verdicts": [{"passed": True, "reason": ""}]}, "seconds: is required"),
        ({"verdicts": [{"passed": 1, "reason": ""}], "seconds": 0}, r"verdicts\[0\]\.passed: 1: .*boolean"),
        ({"verdicts": [{"passed": True}], "seconds": 0}, r"verdicts\[0\]\.reason: is required"),
        ({"verdicts": [{"passed": True, "reason": ""}], "seconds": -1}, "seconds: -1: "),
    ],
)
def test_other_answers(document: Any, message: str) -> None:
    with pytest.raises(BadDocument, match=message):
        parse_verdicts(document, 1)


def test_limits_above_the_maxima() -> None:
    maxima = ProgramLimits.model_validate(LIMITS)
    assert maxima.exceeded_by(maxima) is None
    for field, value in LIMITS.items():
        other = ProgramLimits.model_validate(LIMITS | {field: value + 1})
        assert maxima.exceeded_by(other) == field
        assert other.exceeded_by(maxima) is None
