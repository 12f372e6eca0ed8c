"""Verifiers by hand-worked cases."""

import math
from typing import Any

import pytest

from kubealign.spec.sections.verifiers import Verifier as VerifierSpec
from kubealign_services.scoring.functions.protocol import RESPONSE_LENGTH
from kubealign_services.scoring.verifiers.contract import UnusableRow
from kubealign_services.scoring.verifiers.factory import make_verifier


def score(document: dict[str, Any], response: str, **row: Any) -> float | None:
    return make_verifier(VerifierSpec.model_validate(document)).score(response, row).reward


@pytest.mark.parametrize(
    ("answer", "response", "right"),
    [
        ("42", "First 41, so the answer is 42.", True),
        ("42", "First 42, so the answer is 41.", False),
        (42, "42", True),
        ("1/2", r"$\boxed{0.5}$", True),
        (r"\frac{1}{2}", "The answer is 1/2", True),
        ("$7$", r"So it is $\frac{14}{2}$.", True),
        ("x^2+1", "$1+x^2$", True),
        ("x^2+1", "$1+x$", False),
        (r"\{1, 2\}", r"$\boxed{\{2, 1\}}$", True),
        ("3,200", "It costs 3200 dollars", True),
        ("Half of 48 is 24, not 12.\n#### 24", r"\boxed{24}", True),
        ("Half of 48 is 24, not 12.\n#### 24", r"\boxed{12}", False),
        ("5", "I do not know", False),
        ("5", "", False),
    ],
)
def test_math(answer: Any, response: str, right: bool) -> None:
    assert score({"math": {}}, response, answer=answer) == float(right)


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        (r"\boxed{5}, not $7$", "5"),
        (r"\boxed{5}. The final answer is $7$. I hope it is correct.", "5"),
        (r"\boxed{5} or \boxed{6}", "6"),
        (r"\boxed {\frac{1}{2}} and \boxed{", "1/2"),
        (r"$7$, not \boxed{}", None),
        ("The answer is 5", None),
    ],
)
def test_math_counts_boxes_alone(response: str, answer: str | None) -> None:
    for expected in ("5", "6", "7", "1/2"):
        right = score({"math": {"extract": "Boxed"}}, response, answer=expected)
        assert right == float(expected == answer)


def test_math_rounds_numbers() -> None:
    assert score({"math": {}}, "0.3333", answer="1/3") == 0
    assert score({"math": {"decimals": 3}}, "0.3333", answer="1/3") == 1


def test_a_comparison_without_end_is_wrong() -> None:
    assert score({"math": {}}, "$9^{9^{9^{9}}}$", answer="2^{100000000}") == 0


@pytest.mark.parametrize("answer", ["", "####", "?!"])
def test_math_needs_an_answer(answer: str) -> None:
    with pytest.raises(UnusableRow, match=r"answer is .*no mathematical answer"):
        score({"math": {}}, "1", answer=answer)


@pytest.mark.parametrize(
    ("response", "choice"),
    [
        ("B", "B"),
        ("(B)", "B"),
        ("**B**", "B"),
        ("B.", "B"),
        ("Because of x.\nB\n", "B"),
        ("The answer is B.", "B"),
        ("The answer is (B) since A is wrong.", "B"),
        ("Answer: **B**", "B"),
        ("ANSWER IS: B", "B"),
        (r"\boxed{B}", "B"),
        (r"\boxed{\text{(B)}}", "B"),
        (r"The answer is A. No: \boxed{B}", "B"),
        ("The answer is A. Wait, the answer is B.", "B"),
        # No choice.
        ("A cat, B, C", None),
        ("The answer is Both", None),
        ("The answer is E", None),
        ("b", None),
        ("", None),
    ],
)
def test_multiple_choice(response: str, choice: str | None) -> None:
    for letter in "ABCD":
        assert score({"multipleChoice": {}}, response, answer=letter) == float(letter == choice)


def test_multiple_choice_needs_one_of_the_letters() -> None:
    assert score({"multipleChoice": {}}, "B", answer="(b)") == 1
    with pytest.raises(UnusableRow, match="answer is 'E'; it must be one of A, B, C, D"):
        score({"multipleChoice": {}}, "B", answer="E")
    assert score({"multipleChoice": {"choices": "ABCDE"}}, "E", answer="E") == 1


def test_multiple_choice_knows_the_index_of_a_letter() -> None:
    assert [score({"multipleChoice": {}}, "C", answer=index) for index in range(4)] == [0, 0, 1, 0]
    for answer in (4, -1, True):
        with pytest.raises(UnusableRow, match="an index from 0 to 3"):
            score({"multipleChoice": {}}, "A", answer=answer)


def test_regex() -> None:
    assert score({"regex": {"pattern": r"\d+"}}, "a 12 b") == 1
    assert score({"regex": {"pattern": r"\d+"}}, "a b") == 0
    assert score({"regex": {"pattern": r"\d+", "fullMatch": True}}, "12 b") == 0
    assert score({"regex": {"pattern": r"\d+", "fullMatch": True}}, "12") == 1


@pytest.mark.parametrize(
    ("pattern", "response", "right"),
    [
        (r"= (\d+)", "1 = 1, 2 = 12", True),
        (r"= (\d+)", "2 = 12, 1 = 1", False),
        (r"(?P<sign>-?)=(?P<answer>\d+)", "=12", True),
        (r"\d+", "so 12", True),
        (r"(x)?=", "=", False),
    ],
)
def test_regex_with_an_answer(pattern: str, response: str, right: bool) -> None:
    assert score({"regex": {"pattern": pattern, "answerColumn": "n"}}, response, n=12) == float(right)


SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


@pytest.mark.parametrize(
    ("response", "accepted"),
    [
        ('{"n": 1}', True),
        ('  {"n": 1}\n', True),
        ('{"n": "1"}', False),
        ("{}", False),
        ("n = 1", False),
        ('Here it is:\n```json\n{"n": 1}\n```\n', True),
        ('```json\n{"n": 1}\n```\nor\n```\n{}\n```', False),
        ("[" * 100_000, False),
    ],
    ids=range(8),
)
def test_json_documents(response: str, accepted: bool) -> None:
    assert score({"jsonSchema": {"schema": SCHEMA}}, response) == float(accepted)
    for schema in (SCHEMA, '{"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}'):
        assert score({"jsonSchema": {"schemaColumn": "form"}}, response, form=schema) == float(accepted)


def test_an_invalid_schema_is_refused() -> None:
    with pytest.raises(ValueError, match="not a JSON Schema: 'number of things' is not valid"):
        score({"jsonSchema": {"schema": {"type": "number of things"}}}, "1")
    with pytest.raises(UnusableRow, match="form: not a JSON Schema"):
        score({"jsonSchema": {"schemaColumn": "form"}}, "1", form={"type": "number of things"})


@pytest.mark.parametrize(
    ("response", "form", "share"),
    [
        ("<think>a\nb</think>\n<answer>c</answer>", 1, 1),
        (" <think></think><answer></answer> ", 1, 1),
        ("<answer>c</answer><think>a</think>", 0, 1),
        ("So: <think>a</think><answer>c</answer>", 0, 1),
        ("<think>a</think><answer>c", 0, 0.75),
        ("<think>a</think><think>b</think><answer>c</answer>", 0, 0.5),
        ("<think>a<answer>b</think>c</answer>", 0, 1),
        ("a", 0, 0),
    ],
)
def test_format_tags(response: str, form: float, share: float) -> None:
    assert score({"formatTags": {}}, response) == form
    assert score({"formatTags": {"partial": True}}, response) == share


@pytest.mark.parametrize(("tokens", "reward"), [(0, 1), (10, 1), (15, 0.75), (20, 0.5), (30, 0), (99, 0)])
def test_linear_length(tokens: int, reward: float) -> None:
    document = {"length": {"linear": {"fullTokens": 10, "zeroTokens": 30}}}
    assert score(document, "", **{RESPONSE_LENGTH: tokens}) == reward


@pytest.mark.parametrize(
    ("tokens", "right", "wrong"),
    [
        (0, 2.0, -10.0),
        (25, 1 + (1 + math.sqrt(0.5)) / 2, -5 * (1 + math.sqrt(0.5))),
        (50, 1.5, -5.0),
        (99, 1.0002467, -0.0024672),
        (100, -10.0, -10.0),
        (150, -10.0, -10.0),
    ],
)
def test_cosine_length(tokens: int, right: float, wrong: float) -> None:
    """The values of the paper: right answers from 2 to 1, wrong ones from -10 to 0."""
    cosine = {
        "maxTokens": 100,
        "correct": {"shortest": 2, "longest": 1},
        "wrong": {"shortest": -10, "longest": 0},
        "exceeded": -10,
    }
    document = {"length": {"cosine": cosine}}
    for answer, reward in (("5", right), ("6", wrong)):
        row = {"answer": answer, RESPONSE_LENGTH: tokens}
        assert score(document, "5", **row) == pytest.approx(reward, abs=1e-6)
    assert score(document, "5", **{"answer": None, RESPONSE_LENGTH: tokens}) is None


@pytest.mark.parametrize(
    ("response", "reward"),
    [
        ("", 0),
        ("one two", 0),
        ("a b c d", 0),
        # Four bigrams, two of them different.
        ("go on go on go", -2 * 0.5),
        ("Go on go ON go", -2 * 0.5),
        ("x x x x x", -2 * 0.75),
    ],
)
def test_repetition(response: str, reward: float) -> None:
    assert score({"repetition": {"ngram": 2, "maxPenalty": -2}}, response) == reward


@pytest.mark.parametrize(
    "document",
    [
        {"math": {}},
        {"multipleChoice": {}},
        {"regex": {"pattern": "a", "answerColumn": "answer"}},
        {"jsonSchema": {"schemaColumn": "answer"}},
    ],
    ids=lambda document: next(iter(document)),
)
def test_a_row_without_an_answer_has_no_reward(document: dict[str, Any]) -> None:
    assert score(document, "a", answer=None) is None


@pytest.mark.parametrize(
    ("document", "response", "row", "explanation"),
    [
        ({"math": {}}, "So it is 41.", {"answer": "6*7"}, "read 41; the answer is 6*7"),
        ({"math": {}}, "I do not know", {"answer": "1"}, "read no answer; the answer is 1"),
        ({"math": {"extract": "Boxed"}}, "1", {"answer": "1"}, r"nothing in a \boxed{}"),
        ({"math": {}}, "1", {"answer": None}, ""),
        ({"multipleChoice": {}}, "The answer is B", {"answer": "C"}, "chose B; the answer is C"),
        ({"multipleChoice": {}}, "Perhaps", {"answer": "C"}, "chose no letter; the answer is C"),
        ({"regex": {"pattern": "[0-9]+"}}, "about 7", {}, "matched '7'"),
        ({"regex": {"pattern": "[0-9]+"}}, "about", {}, "no match"),
        (
            {"regex": {"pattern": "= (.*)", "answerColumn": "answer"}},
            "1+1 = 3",
            {"answer": 2},
            "read '3'; the answer is '2'",
        ),
        ({"jsonSchema": {"schema": {"type": "object"}}}, "{}", {}, ""),
        ({"jsonSchema": {"schema": {"type": "object"}}}, "[1]", {}, "$: [1] is not of type 'object'"),
        (
            {"jsonSchema": {"schema": {"properties": {"n": {"type": "integer"}}}}},
            '{"n": "x"}',
            {},
            "$.n: 'x' is not of type 'integer'",
        ),
        ({"jsonSchema": {"schema": {}}}, "{", {}, "no JSON document: Expecting property name"),
        ({"formatTags": {"tags": ["a"]}}, "<a>x</a>", {}, ""),
        ({"formatTags": {"tags": ["a", "b"]}}, "<a>x</a><b>", {}, "not exactly once: </b>"),
        ({"formatTags": {"tags": ["a"]}}, "no <a>x</a>", {}, "text outside the sections, or their order"),
        ({"repetition": {"ngram": 2}}, "a b a b a", {}, "2 of 4 sequences of 2 words occurred before"),
        ({"length": {"linear": {"fullTokens": 2, "zeroTokens": 4}}}, "a", {RESPONSE_LENGTH: 3}, "3 tokens"),
        (
            {"length": {"cosine": {"math": {}, "maxTokens": 4}}},
            "7",
            {RESPONSE_LENGTH: 3, "answer": "7"},
            "3 tokens; read 7; the answer is 7",
        ),
    ],
)
def test_each_rule_explains_its_reward(
    document: dict[str, Any], response: str, row: dict[str, Any], explanation: str
) -> None:
    verifier = make_verifier(VerifierSpec.model_validate(document))
    assert verifier.score(response, row).explanation.startswith(explanation)
    assert bool(verifier.score(response, row).explanation) == bool(explanation)
