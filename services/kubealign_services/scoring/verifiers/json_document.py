"""JSON documents of a schema as responses."""

import json
from collections.abc import Mapping
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, best_match

from kubealign.spec.sections.verifiers import JsonSchemaVerifier
from kubealign_services.scoring.functions.results import RewardResult
from kubealign_services.scoring.verifiers.contract import UnusableRow
from kubealign_services.scoring.verifiers.fenced_blocks import last_fenced_block


class JsonDocument:
    """1 for a response that is a JSON document of the schema."""

    def __init__(self, spec: JsonSchemaVerifier) -> None:
        """Raises ValueError where the spec's schema is none."""
        self._column = spec.schema_column
        self._schema = None if spec.document_schema is None else _validator(spec.document_schema)

    def score(self, response: str, row: Mapping[str, Any]) -> RewardResult:
        schema = self._schema
        if schema is None:
            assert self._column is not None
            value = row[self._column]
            if value is None:
                return RewardResult(None)
            try:
                schema = _validator(json.loads(value) if isinstance(value, str) else value)
            except ValueError as error:
                raise UnusableRow(f"{self._column}: {error}") from error
        try:
            document = json.loads(_document_text(response))
        except (ValueError, RecursionError) as error:
            return RewardResult(0.0, explanation=f"no JSON document: {error}")
        fault = best_match(schema.iter_errors(document))
        if fault is None:
            return RewardResult(1.0)
        return RewardResult(0.0, explanation=f"{fault.json_path}: {fault.message}")


def _validator(schema: Any) -> Draft202012Validator:
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        raise ValueError(f"not a JSON Schema: {error.message}") from error
    return Draft202012Validator(schema)


def _document_text(response: str) -> str:
    block = last_fenced_block(response)
    return response if block is None else block
