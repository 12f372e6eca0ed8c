"""Agreement with the reference implementation on generated responses and parameters, by each instruction.

Left out is where the documentation names a difference: keywords with signs of regular expressions, runs of
sentence ends, parameters that the reference would draw, and responses of which the language is not plain.
"""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from kubealign_services.scoring.verifiers.instructions.language import LANGUAGES
from kubealign_services.scoring.verifiers.instructions.registry import INSTRUCTIONS
from support.ifeval_reference import NEEDED, IfevalReference, ifeval_reference, is_installed
from support.instruction_checks import SENTENCES, check_instruction

pytestmark = pytest.mark.skipif(
    not is_installed(), reason=f"not installed, for the reference: one of {', '.join(NEEDED)}"
)

WORDS = [
    "cat",
    "Cat",
    "CATS",
    "dog",
    "the",
    "I",
    "it's",
    "DON'T",
    "well-known",
    "Mr.",
    "e.g.",
    "U.S.",
    "3.5",
    "x2",
]
SIGNS = [
    "\n",
    "\n\n",
    "\n***\n",
    "***",
    "******",
    "*",
    "**",
    "* ",
    "- ",
    "---",
    '"',
    "'",
    ",",
    ".",
    "!",
    "?",
    ":",
    ";",
]
FORMS = [
    "P.S. more", "P.P.S", "p. p. s", "[name]", "[", "]", "<<", ">>", "<<title>>", "*one*", "**two**",
    "Section 1", "SECTION 2", "Section3", "```json", "```", '{"a": 1}',
    "My answer is yes.", "The end.", "Write a poem.",
]  # fmt: skip
PIECES = st.sampled_from([*WORDS, *SIGNS, *FORMS, *SENTENCES.values()]) | st.text(max_size=4)
RESPONSES = st.lists(st.tuples(PIECES, st.sampled_from(["", " ", " ", "\n"])), max_size=24).map(
    lambda pieces: "".join(piece + gap for piece, gap in pieces)
)
#: Responses in one language, some of them in letters of one case.
PLAIN_RESPONSES = st.builds(
    lambda sentence, count, change: change("\n".join([sentence] * count)),
    st.sampled_from(list(SENTENCES.values())),
    st.integers(1, 3),
    st.sampled_from([str, str.lower]),
)
NUMBERS = st.integers(1, 6)
RELATIONS = st.sampled_from(["less than", "at least"])
KEYWORDS = st.sampled_from(["cat", "dog", "The", "house stands", "x2", "nothing", "name", "Дом"])


def parameters_of(identifier: str) -> st.SearchStrategy[dict[str, Any]]:
    """Return parameters that all mean for the reference what they say."""
    special: dict[str, st.SearchStrategy[Any]] = {
        "relation": RELATIONS,
        "let_relation": RELATIONS,
        "capital_relation": RELATIONS,
        "keyword": KEYWORDS,
        "keywords": st.lists(KEYWORDS, min_size=1, max_size=3),
        "forbidden_words": st.lists(KEYWORDS, min_size=1, max_size=3),
        "letter": st.sampled_from("aetCN"),
        "language": st.sampled_from(list(SENTENCES)),
        "first_word": st.sampled_from(["cat", "The", "it", "don", "section", "mr"]),
        "postscript_marker": st.sampled_from(["P.S.", "P.P.S", "Note"]),
        "section_spliter": st.sampled_from(["Section", "SECTION", "x"]),
        "prompt_to_repeat": st.sampled_from(["Write a poem.", " the", "*"]),
        "end_phrase": st.sampled_from(["The end.", "cat", '!"', "cat dog "]),
    }
    names = {name: special.get(name, NUMBERS) for name in INSTRUCTIONS[identifier].parameters}
    rows = st.fixed_dictionaries(names)
    if "nth_paragraph" in names:
        return rows.filter(lambda row: row["nth_paragraph"] <= row["num_paragraphs"])
    return rows


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Iterator[IfevalReference]:
    with ifeval_reference(tmp_path_factory.mktemp("nltk_data")) as installed:
        yield installed


@pytest.mark.parametrize("identifier", INSTRUCTIONS)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_the_reference_decides_alike(
    reference: IfevalReference, identifier: str, data: st.DataObject
) -> None:
    is_language = identifier.startswith(("language:", "change_case:english"))
    response = data.draw(PLAIN_RESPONSES if is_language else RESPONSES, label="response")
    parameters = data.draw(parameters_of(identifier), label="parameters")
    if identifier.endswith("number_sentences"):
        sentences = reference.sentences(response)
        assume(not any(set(sentence) <= set(".?!") for sentence in sentences))
    verdicts = tuple(
        bool(check_instruction(identifier, response, parameters, criterion).reward)
        for criterion in ("Strict", "Loose")
    )
    assert verdicts == reference.verdicts(response, identifier, parameters)


def test_the_reference_has_these_instructions_and_languages(reference: IfevalReference) -> None:
    assert reference.instructions() == set(INSTRUCTIONS)
    assert reference.languages() < set(LANGUAGES)


@pytest.mark.parametrize("response", ["THE HOUSE STANDS NEAR THE RIVER.", "HELLO WORLD.", "12"])
def test_responses_in_capital_letters(reference: IfevalReference, response: str) -> None:
    """The library of the reference reads the first letters alone, and calls the second one Somali."""
    ours = check_instruction("change_case:english_capital", response, {}).reward
    small, _ = reference.verdicts(response.lower(), "change_case:english_lowercase", {})
    assert ours == float(small)
