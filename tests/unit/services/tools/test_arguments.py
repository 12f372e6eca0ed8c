"""Arguments of calls are validated against the schema of the tool."""

from pathlib import Path
from typing import Any

import pytest

from kubealign_services.tools.arguments import ArgumentValidator, closed_parameters

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "a": {"type": "integer"},
        "unit": {"type": "string", "enum": ["m", "km"]},
        "note": {"type": "string", "nullable": True},
        "points": {"type": "array", "items": {"type": "object", "properties": {"x": {"type": "number"}}}},
    },
    "required": ["a"],
}


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"a": 1}, None),
        ({"a": 1, "note": None}, None),
        ({"a": "x"}, "a: 'x' is not of type 'integer'"),
        ({}, "'a' is a required property"),
        ({"a": 1, "unit": "mile"}, "unit: 'mile' is not one of ['m', 'km']"),
        ({"a": 1, "points": [{"x": 1}, {"x": "y"}]}, "points[1].x: 'y' is not of type 'number'"),
        (
            {"a": 1, "c": 2},
            "Additional properties are not allowed ('c' was unexpected)",
        ),
    ],
)
def test_the_error_names_the_argument(arguments: dict[str, Any], problem: str | None) -> None:
    assert ArgumentValidator(closed_parameters(SCHEMA)).problem(arguments) == problem


def test_a_server_decides_about_further_arguments() -> None:
    assert ArgumentValidator(SCHEMA).problem({"a": 1, "c": 2}) is None


def test_a_schema_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match=r"is no JSON schema: \$\.properties\.a\.type: 'int' is not valid"):
        ArgumentValidator({"type": "object", "properties": {"a": {"type": "int"}}})


def test_no_other_document_is_read(tmp_path: Path) -> None:
    document = tmp_path / "schema.json"
    document.write_text('{"type": "string"}')
    schema = {"type": "object", "properties": {"a": {"$ref": document.as_uri()}}}
    problem = ArgumentValidator(schema).problem({"a": 1})
    assert problem == f"the tool's schema refers to {document.as_uri()}, which is not in it"


def test_arguments_that_are_nested_too_deeply_are_a_problem() -> None:
    schema = {"$ref": "#/$defs/tree", "$defs": {"tree": {"properties": {"a": {"$ref": "#/$defs/tree"}}}}}
    arguments: dict[str, Any] = {}
    for _ in range(900):
        arguments = {"a": arguments}
    assert ArgumentValidator(schema).problem(arguments) == "they are nested too deeply"
