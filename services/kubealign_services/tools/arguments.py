"""Validation of the arguments of a call against the JSON schema of its tool."""

from collections.abc import Mapping
from typing import Any

import jsonschema
from jsonschema.exceptions import SchemaError, best_match
from jsonschema.validators import validator_for
from referencing import Registry
from referencing.exceptions import Unresolvable


class ArgumentValidator:
    """Validates arguments.

    Args:
        parameters: Schema of the object of arguments.

    Raises:
        ValueError: `parameters` is no JSON schema.
    """

    def __init__(self, parameters: Mapping[str, Any]) -> None:
        schema = _with_null(parameters)
        kind = validator_for(schema, default=jsonschema.Draft202012Validator)
        try:
            kind.check_schema(schema)
        except SchemaError as error:
            raise ValueError(f"is no JSON schema: {error.json_path}: {error.message}") from error
        # An empty registry: references to other documents are not downloaded.
        self._validator = kind(schema, registry=Registry())

    def problem(self, arguments: Mapping[str, Any]) -> str | None:
        """Return the most relevant error of the arguments, such as `a: 'x' is not of type 'integer'`; None:
        they are valid.
        """
        try:
            error = best_match(self._validator.iter_errors(arguments))
        except Unresolvable as unresolvable:
            return f"the tool's schema refers to {unresolvable.ref}, which is not in it"
        except RecursionError:
            return "they are nested too deeply"
        if error is None:
            return None
        path = error.json_path.removeprefix("$").removeprefix(".")
        return f"{path}: {error.message}" if path else str(error.message)


def closed_parameters(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of a function's parameters, none of which has another name."""
    return {"additionalProperties": False, **parameters}


def _with_null(schema: Any) -> Any:
    """Return a schema with `nullable`, a keyword of OpenAPI by which transformers writes Optional, as a type
    of JSON Schema.
    """
    if isinstance(schema, list):
        return [_with_null(item) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    converted = {key: _with_null(value) for key, value in schema.items()}
    if converted.get("nullable") is not True:
        return converted
    del converted["nullable"]
    return {"anyOf": [converted, {"type": "null"}]}
