"""Verifiers in the spec: their columns, and a verifier of programs with a server."""

import pytest

from kubealign.spec.sections.rewards import Reward
from kubealign.spec.sections.score_calls import RewardErrorPolicy
from kubealign.spec.sections.validation import ValidationScore
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
        ({"code": {"server": {"url": "http://sandbox"}}}, {"code.testsColumn": "tests"}),
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


@pytest.mark.parametrize("model", [Reward, ValidationScore])
def test_programs_of_a_server_are_calls_of_a_server(model: type[Reward] | type[ValidationScore]) -> None:
    """Errors, calls in flight and egress are those of http."""
    document = {"name": "a", "verifier": {"code": {"server": {"url": "http://sandbox"}}}}
    entry = model.model_validate(document | {"egress": [{"anywhere": {}}]})
    http = model.model_validate({"name": "a", "http": {"url": "http://scores"}})
    assert list(entry.servers) == ["verifier.code.server"]
    assert entry.calls_a_server and http.calls_a_server
    assert entry.error_policy is http.error_policy is RewardErrorPolicy.SKIP
    assert entry.calls_in_flight == http.calls_in_flight == 8
    local = model.model_validate({"name": "a", "verifier": {"code": {}}})
    assert not local.calls_a_server and local.error_policy is RewardErrorPolicy.RETRY
