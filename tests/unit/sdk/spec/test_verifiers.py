"""Verifiers in the spec: their columns."""

import pytest

from kubealign.spec.sections.verifiers import Verifier


@pytest.mark.parametrize(
    ("document", "columns"),
    [
        ({"math": {}}, {"math.answerColumn": "answer"}),
        ({"multipleChoice": {"answerColumn": "key"}}, {"multipleChoice.answerColumn": "key"}),
        ({"regex": {"pattern": "a"}}, {}),
        ({"regex": {"pattern": "a", "answerColumn": "key"}}, {"regex.answerColumn": "key"}),
        ({"jsonSchema": {"schema": {}}}, {}),
        ({"jsonSchema": {"schemaColumn": "form"}}, {"jsonSchema.schemaColumn": "form"}),
        ({"code": {}}, {"code.testsColumn": "tests"}),
        (
            {"code": {"prefixColumn": "prompt", "setupColumn": "setup", "entryPointColumn": "entry_point"}},
            {
                "code.testsColumn": "tests",
                "code.prefixColumn": "prompt",
                "code.setupColumn": "setup",
                "code.entryPointColumn": "entry_point",
            },
        ),
        ({"length": {"linear": {"fullTokens": 1, "zeroTokens": 2}}}, {}),
        (
            {"length": {"cosine": {"maxTokens": 8, "math": {"answerColumn": "key"}}}},
            {"length.cosine.math.answerColumn": "key"},
        ),
        ({"formatTags": {}}, {}),
        ({"repetition": {}}, {}),
        (
            {"instructions": {"kwargsColumn": "arguments"}},
            {"instructions.idsColumn": "instruction_id_list", "instructions.kwargsColumn": "arguments"},
        ),
    ],
    ids=lambda value: next(iter(value), "no column"),
)
def test_named_columns(document: dict[str, object], columns: dict[str, str]) -> None:
    assert Verifier.model_validate(document).named_columns() == columns
