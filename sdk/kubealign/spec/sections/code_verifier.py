"""Verifier of programs: the tests of the row, in a sandbox."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field, model_validator

from kubealign.spec.base import HTTP_ADDRESS_PATTERN, ShortText, SpecModel, field_errors
from kubealign.spec.sections.reward_servers import RewardServer

#: Tests that run at once on the machine of the reward's process, where the spec states no number.
DEFAULT_PARALLEL_TESTS = 2

#: Message for columns that only tests of kind Python use.
NO_EFFECT_ON_INPUT_OUTPUT = "has no effect on tests of kind InputOutput: remove it, or set kind: Python"
#: Message for fields that only sandboxes on the machine of the reward's process use.
NO_EFFECT_WITH_SERVER = "has no effect with server, which decides how many tests run at once: remove it"


class CodeTestKind(StrEnum):
    """Python: code that raises an exception where the program is wrong: a list of texts such as MBPP's assert
    statements, or one text such as HumanEval's. InputOutput: a list of objects with the texts input and
    output.
    """

    PYTHON = "Python"
    INPUT_OUTPUT = "InputOutput"


class SandboxServer(RewardServer):
    """A service that runs programs in its own sandboxes, by the contract of
    docs/sandbox-service.openapi.yaml.
    """

    url: Annotated[str, Field(pattern=HTTP_ADDRESS_PATTERN, max_length=1024)] = Field(
        description="Address of the service; /v1/programs is added."
    )


class CodeVerifier(SpecModel):
    """1 if the response's Python program passes all tests of the row, else 0.

    The program is the last fenced block, or the whole response without one. It runs in a sandbox, with the
    standard library only.
    """

    tests_column: ShortText = Field(
        "tests", description="Column of the data set with the tests; a row whose value is null has no reward."
    )
    kind: CodeTestKind = Field(CodeTestKind.PYTHON, description="Form of the tests.")
    prefix_column: ShortText | None = Field(
        None,
        description="Column with the beginning of the program, such as HumanEval's prompt; null: the "
        "response is the whole program.",
    )
    setup_column: ShortText | None = Field(
        None,
        description="Column with code that runs before the program, such as MBPP's test_setup_code, as a "
        "text or a list of texts; null: none. Only with kind Python.",
    )
    entry_point_column: ShortText | None = Field(
        None,
        description="Column with the name of the function that the tests' function check takes, as in "
        "HumanEval; null: the tests call the program themselves. Only with kind Python.",
    )
    partial: bool = Field(False, description="The reward is the share of tests that the program passes.")
    seconds_per_test: float = Field(
        5.0, gt=0, le=600, description="Longest time of one test from the start of the program on."
    )
    seconds_per_response: float = Field(
        20.0,
        gt=0,
        le=3600,
        description="Longest time of all tests of a response; tests that would start later fail. Must be "
        "below timeoutSeconds of the reward, better by several seconds.",
    )
    memory_mib: int = Field(
        512, ge=64, le=65536, description="Memory of the program in MiB, the interpreter's included."
    )
    output_bytes: int = Field(65536, ge=1, le=2**24, description="Bytes that the program may print.")
    processes: int = Field(
        16, ge=1, le=1024, description="Processes and threads that the program may have at once."
    )
    parallel_tests: int = Field(
        DEFAULT_PARALLEL_TESTS, ge=1, le=64, description="Tests that run at once; not with server."
    )
    server: SandboxServer | None = Field(
        None,
        description="Service that runs the programs; null: they run on the machine of the reward's process, "
        "which needs user namespaces.",
    )

    @model_validator(mode="after")
    def _columns_of_kind(self) -> "CodeVerifier":
        if self.kind is CodeTestKind.INPUT_OUTPUT:
            problems = [
                ((field,), column, NO_EFFECT_ON_INPUT_OUTPUT)
                for field, column in (
                    ("setupColumn", self.setup_column),
                    ("entryPointColumn", self.entry_point_column),
                )
                if column is not None
            ]
            if problems:
                raise field_errors("CodeVerifier", *problems)
        return self

    @model_validator(mode="after")
    def _tests_of_server(self) -> "CodeVerifier":
        if self.server is not None and self.parallel_tests != DEFAULT_PARALLEL_TESTS:
            raise field_errors(
                "CodeVerifier", (("parallelTests",), self.parallel_tests, NO_EFFECT_WITH_SERVER)
            )
        return self
