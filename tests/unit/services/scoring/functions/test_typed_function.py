"""Typed functions as tools: schemas of signatures and docstrings, and calls."""

from collections.abc import Callable
from enum import Enum
from typing import Any, Literal

import pytest
from transformers.utils import get_json_schema

from kubealign_services.scoring.functions.child_main import FunctionError, handle_request
from kubealign_services.scoring.functions.protocol import FunctionFailure
from kubealign_services.scoring.functions.typed_function import (
    NoSchema,
    call_with_arguments,
    describe_function,
)


class Unit(Enum):
    METRE = "m"
    MILE = "mile"


def convert(
    length: float,
    unit: Unit,
    to: Literal["m", "km"] = "m",
    digits: int | None = None,
    tags: list[str] = [],  # noqa: B006
) -> str:
    """
    Convert a length.

    Args:
        length: The length.
        unit: Its unit.
        to: The unit of the
            result.
        digits: Digits after the point.
        tags: Names.

    Returns:
        The length.
    """
    return f"{length} {unit} {to} {digits} {tags}"


async def later(text: str) -> dict[str, Any]:
    """
    Answer later.

    Args:
        text: A text.
    """
    return {"é": text}


def test_the_schema_is_that_of_the_signature_and_the_docstring() -> None:
    schema = describe_function(convert)
    assert schema == get_json_schema(convert)
    assert schema["function"]["name"] == "convert"
    assert schema["function"]["description"] == "Convert a length."
    parameters = schema["function"]["parameters"]
    assert parameters["required"] == ["length", "unit"]
    assert parameters["properties"]["unit"] == {
        "type": "string",
        "enum": ["m", "mile"],
        "description": "Its unit.",
    }
    assert parameters["properties"]["to"]["enum"] == ["m", "km"]
    assert parameters["properties"]["to"]["description"] == "The unit of the result."
    assert parameters["properties"]["digits"] == {
        "type": "integer",
        "nullable": True,
        "description": "Digits after the point.",
    }
    assert parameters["properties"]["tags"]["items"] == {"type": "string"}


def test_the_job_may_name_the_tool() -> None:
    assert describe_function(convert, "length")["function"]["name"] == "length"
    reply = handle_request(convert, {"tool": "length"})
    assert reply["schema"]["function"]["name"] == "length"
    assert handle_request(convert, {"tool": None})["schema"]["function"]["name"] == "convert"


def untyped(a, b: int) -> int:  # type: ignore[no-untyped-def]
    """
    Add.

    Args:
        a: One.
        b: Two.
    """
    return a + b


def undescribed(a: int) -> int:
    """Add one."""
    return a + 1


def without_docstring(a: int) -> int:
    return a


def with_any(*values: int) -> int:
    """Add."""
    return sum(values)


def with_names(**values: int) -> int:
    """Add."""
    return sum(values.values())


def positional(a: int, /) -> int:
    """
    Return.

    Args:
        a: One.
    """
    return a


def of_a_class(a: NoSchema) -> int:
    """
    Return.

    Args:
        a: One.
    """
    return 1


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (untyped, "Argument a is missing a type hint"),
        (undescribed, "no description for the argument 'a'"),
        (without_docstring, "it has no docstring"),
        (with_any, r"\*values: int takes any number of arguments: name each argument"),
        (with_names, r"\*\*values: int takes arguments of any name"),
        (positional, "a: int is positional only"),
        (of_a_class, "convert the type hint"),
    ],
)
def test_a_function_without_a_schema_is_refused(function: Callable[..., Any], says: str) -> None:
    with pytest.raises(NoSchema, match=says):
        describe_function(function)
    with pytest.raises(FunctionError, match="has no JSON schema: ") as caught:
        handle_request(function, {"tool": None})
    assert caught.value.kind is FunctionFailure.BAD


def test_text_is_returned_as_it_is_and_other_values_as_json() -> None:
    arguments = {"length": 1.5, "unit": "m"}
    assert handle_request(convert, {"arguments": arguments}) == {"answer": "1.5 m m None []"}
    assert call_with_arguments(later, {"text": "x"}) == {"answer": '{"é": "x"}'}
    assert call_with_arguments(lambda: None, {}) == {"answer": "null"}
    assert call_with_arguments(lambda: True, {}) == {"answer": "true"}


def fails() -> None:
    raise LookupError("no such city")


def ends() -> None:
    raise SystemExit


def test_a_failure_names_the_exception_and_no_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert call_with_arguments(fails, {}) == {"failure": "LookupError: no such city"}
    assert call_with_arguments(ends, {}) == {"failure": "SystemExit"}
    # The log has the rest.
    assert "test_typed_function.py" in capsys.readouterr().err
    assert call_with_arguments(lambda: object(), {})["failure"].startswith("TypeError: Object of type object")
    assert call_with_arguments(later, {})["failure"].startswith("TypeError: later() missing 1 required")
