"""Documents of the sandbox service: programs to be run, and the verdicts of their tests. Pure.

The contract is docs/sandbox-service.openapi.yaml.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    field_validator,
)
from pydantic.alias_generators import to_camel

from kubealign.spec.paths import format_path
from kubealign.spec.sections.code_verifier import CodeVerifier
from kubealign_services.scoring.sandbox.limits import Limits
from kubealign_services.scoring.sandbox.programs import InputOutputCase, TestedProgram
from kubealign_services.scoring.sandbox.runs import TestVerdict
from kubealign_services.scoring.shortened_text import shorten

#: Path of the requests.
PROGRAMS_PATH = "/v1/programs"
_KINDS = ("python", "inputOutput")
_SHOWN_CHARACTERS = 100


class BadDocument(ValueError):
    """A document that is not of the contract. The message names the field and its value."""


def _check_characters(value: str) -> str:
    """Refuse halves of surrogate pairs, which JSON can state and no file can hold."""
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ValueError("must be Unicode text, without surrogates") from error
    return value


_Text = Annotated[str, AfterValidator(_check_characters)]


class _Document(BaseModel):
    model_config = ConfigDict(
        alias_generator=to_camel,
        validate_by_name=True,
        extra="forbid",
        strict=True,
        frozen=True,
        allow_inf_nan=False,
    )


class ProgramLimits(_Document):
    """Limits of a program: those of each test, and the seconds of all of them together."""

    seconds_per_test: float = Field(gt=0)
    seconds_per_response: float = Field(gt=0)
    memory_mib: int = Field(ge=64)
    output_bytes: int = Field(ge=1)
    processes: int = Field(ge=1)

    def exceeded_by(self, other: "ProgramLimits") -> str | None:
        """Return the first field that is larger in the other limits, as documents name it; None: none is."""
        fields = type(self).model_fields
        exceeded = (name for name in fields if getattr(other, name) > getattr(self, name))
        return next(map(to_camel, exceeded), None)

    @property
    def per_test(self) -> Limits:
        """Limits of each test."""
        return Limits(self.seconds_per_test, self.memory_mib << 20, self.output_bytes, self.processes)


class PythonProgram(_Document):
    """A program whose tests are statements, which raise an exception where it is wrong."""

    kind: Literal["python"] = "python"
    program: _Text = Field(min_length=1)
    tests: list[_Text] = Field(min_length=1)
    limits: ProgramLimits
    prefix: _Text = ""
    setup: _Text = ""
    entry_point: str | None = None

    @field_validator("entry_point")
    @classmethod
    def _name_of_function(cls, value: str | None) -> str | None:
        if value is not None and not value.isidentifier():
            raise ValueError("must be the name of a function")
        return value

    @property
    def tested_program(self) -> TestedProgram:
        """The program with its tests."""
        return TestedProgram(self.program, self.tests, self.prefix, self.setup, self.entry_point)


class CaseDocument(_Document):
    """Input and output of one test."""

    input: _Text
    output: _Text


class InputOutputProgram(_Document):
    """A program that reads an input and prints an output."""

    kind: Literal["inputOutput"] = "inputOutput"
    program: _Text = Field(min_length=1)
    tests: list[CaseDocument] = Field(min_length=1)
    limits: ProgramLimits
    prefix: _Text = ""

    @property
    def tested_program(self) -> TestedProgram:
        """The program with its tests."""
        cases = [InputOutputCase(case.input, case.output) for case in self.tests]
        return TestedProgram(self.program, cases, self.prefix)


ProgramDocument = PythonProgram | InputOutputProgram

_PROGRAM: TypeAdapter[ProgramDocument] = TypeAdapter(Annotated[ProgramDocument, Field(discriminator="kind")])


class VerdictDocument(_Document):
    """Verdict of one test, with the reason where it has failed."""

    passed: bool
    reason: str


class VerdictsDocument(_Document):
    """Verdicts of a program's tests, in their order, and the time that they took."""

    verdicts: list[VerdictDocument]
    seconds: float = Field(ge=0)

    @classmethod
    def of(cls, verdicts: Sequence[TestVerdict], seconds: float) -> "VerdictsDocument":
        """Return the document of some verdicts."""
        documents = [VerdictDocument(passed=each.passed, reason=each.reason) for each in verdicts]
        return cls(verdicts=documents, seconds=seconds)

    @property
    def test_verdicts(self) -> list[TestVerdict]:
        """Verdicts in the order of the tests."""
        return [TestVerdict(each.passed, each.reason) for each in self.verdicts]


def program_document(program: TestedProgram, spec: CodeVerifier) -> dict[str, Any]:
    """Return the request that has a program run within the limits of a spec."""
    limits = ProgramLimits(
        seconds_per_test=spec.seconds_per_test,
        seconds_per_response=spec.seconds_per_response,
        memory_mib=spec.memory_mib,
        output_bytes=spec.output_bytes,
        processes=spec.processes,
    ).model_dump(by_alias=True)
    document = {"program": program.text, "prefix": program.prefix, "limits": limits}
    cases = [asdict(test) for test in program.tests if isinstance(test, InputOutputCase)]
    if cases:
        return {"kind": "inputOutput", "tests": cases, **document}
    return {
        "kind": "python",
        "tests": list(program.tests),
        "setup": program.setup,
        "entryPoint": program.entry_point,
        **document,
    }


def parse_program(body: bytes) -> ProgramDocument:
    """Return the program of a request's body. Raises BadDocument."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadDocument(f"the body is no JSON: {error}") from error
    try:
        return _PROGRAM.validate_python(document)
    except ValidationError as error:
        raise BadDocument(_first_problem(error)) from error


def parse_verdicts(document: Any, count: int) -> VerdictsDocument:
    """Return the verdicts of an answer's JSON on `count` tests. Raises BadDocument."""
    try:
        verdicts = VerdictsDocument.model_validate(document)
    except ValidationError as error:
        raise BadDocument(_first_problem(error)) from error
    if len(verdicts.verdicts) != count:
        raise BadDocument(f"verdicts: has {len(verdicts.verdicts)} entries for {count} tests")
    return verdicts


def _first_problem(error: ValidationError) -> str:
    """Return the first error on one line: field, value, and what is allowed."""
    first = error.errors(include_url=False)[0]
    kind, message = first["type"], first["msg"].removeprefix("Value error, ")
    if kind in {"union_tag_not_found", "union_tag_invalid"}:
        given = first["input"].get("kind")
        return f"kind: {_shown(given)}: must be one of {', '.join(_KINDS)}"
    # The first part of a location in a program is its kind.
    parts = first["loc"][1:] if first["loc"][:1] and first["loc"][0] in _KINDS else first["loc"]
    path = format_path(parts) or "the document"
    if kind == "missing":
        return f"{path}: is required"
    if kind == "extra_forbidden":
        return f"{path}: is no field of the contract"
    if kind in {"model_type", "model_attributes_type"}:
        message = "must be an object"
    return f"{path}: {_shown(first['input'])}: {message}"


def _shown(value: Any) -> str:
    return shorten(json.dumps(value, default=str), _SHOWN_CHARACTERS)
