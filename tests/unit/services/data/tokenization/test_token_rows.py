"""Rows of token ids: the same tokens are trained as by TRL, and ids that do not fit are reported."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubealign.spec.sections.data import Data
from kubealign_services.data.errors import DataError
from kubealign_services.data.rows.field_mapping import referenced_columns, token_columns
from kubealign_services.data.tokenization.example_tokenizer import ExampleTokenizer, TokenizedExample
from kubealign_services.data.tokenization.token_rows import TokenRowReader, split_sequence
from kubealign_services.data.tokenization.tokenizers import train_character_tokenizer

TOKENIZER = train_character_tokenizer(["0123456789+="])
SUM = [5, 3, 6, 14]
#: A sequence with two trained parts, neither of them at its end.
IDS, MASK = [*SUM, 7, 1, *SUM, 8, 1, 3], [0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 1, 1, 0]


def data(member: str, **tokens: Any) -> Any:
    source = {"source": {"path": "/rows.jsonl"}}
    return Data.model_validate({member: source | {"format": {"tokens": tokens}}}).value


def read(given: Any, row: dict[str, Any]) -> TokenizedExample:
    return TokenRowReader(TOKENIZER, given).read([(7, row)])[0]


def trl_labels(ids: list[int], *masks: list[int]) -> list[int]:
    """Return the labels that TRL's SFTTrainer (1.16) builds from masks, which torch then shifts by one."""
    labels = []
    for index, token in enumerate(ids):
        labels.append(token if all(mask[index] for mask in masks) else -100)
    return labels


sequences = st.lists(st.tuples(st.integers(0, 14), st.integers(0, 1)), min_size=2, max_size=12).filter(
    lambda pairs: any(bit for _, bit in pairs[1:])
)


@given(pairs=sequences)
def test_the_tokens_with_a_label_are_trained(pairs: list[tuple[int, int]]) -> None:
    """The label of the first token is shifted out by TRL's loss too."""
    ids, mask = [token for token, _ in pairs], [bit for _, bit in pairs]
    labels = trl_labels(ids, mask)
    trained = {(index, token) for index, token in enumerate(labels) if index > 0 and token != -100}
    row = {"input_ids": ids, "completion_mask": mask, "labels": labels}
    for layout in ({}, {"trained": {"labels": "labels"}}):
        example = read(data("demonstrations", **layout), row)
        response = example.responses["response"]
        bits = example.response_mask or [1] * len(response)
        start = len(example.prompt_tokens)
        assert {
            (start + index, token)
            for index, (token, bit) in enumerate(zip(response, bits, strict=True))
            if bit
        } == trained
        assert [*example.prompt_tokens, *response] == ids[: start + len(response)]
        assert bits[0] == bits[-1] == 1 and (example.response_mask is None) == (0 not in bits)


def test_sequences_with_parts_that_are_trained() -> None:
    example = read(data("demonstrations"), {"input_ids": IDS, "completion_mask": [bool(b) for b in MASK]})
    assert (example.prompt_tokens, example.prompt_text) == (SUM, TOKENIZER.decode(SUM))
    assert example.responses == {"response": IDS[4:12]} and example.response_mask == MASK[4:12]
    assert example.example.number == 7
    assert split_sequence([5, 6, 7], [0, 1, 1]) == ([5], [6, 7], None)


def test_sequences_with_a_prompt_length() -> None:
    layout = {"sequence": "ids", "trained": {"promptLength": "n"}}
    example = read(data("demonstrations", **layout), {"ids": [*SUM, 7, 1], "n": 4})
    assert (example.prompt_tokens, example.responses) == (SUM, {"response": [7, 1]})
    assert example.response_mask is None


def test_prompts_and_responses() -> None:
    row = {"prompt_ids": SUM, "chosen_ids": [7, 1], "rejected_ids": [8], "completion_ids": [9, 1]}
    row |= {"rating": 3, "label": False, "good": 4, "bad": 1.5}
    assert read(data("prompts"), row).responses == {}
    rated = data("preferences", chosenRating="good", rejectedRating="bad")
    pair = read(rated, row)
    assert pair.responses == {"chosen": [7, 1], "rejected": [8]}
    assert (pair.example.chosen_rating, pair.example.rejected_rating) == (4.0, 1.5)
    assert token_columns(rated) == {"prompt_ids", "chosen_ids", "rejected_ids"}
    assert read(data("ratings"), row).example.ratings == [3.0]
    assert read(data("unpaired"), row).example.label is False
    assert read(data("unpaired"), row).responses == {"response": [9, 1]}


def test_special_tokens_are_part_of_the_prompt_text() -> None:
    assert read(data("prompts"), {"prompt_ids": [1, 3]}).prompt_text == "<eos>+"


def test_an_end_that_stands_for_unknown_text_too_ends_a_response() -> None:
    """GPT-2's tokenizer has one token for both."""
    tokenizer = train_character_tokenizer(["ab"])
    tokenizer.unk_token = tokenizer.eos_token
    ids = [tokenizer.eos_token_id, tokenizer.encode("a")[0]]
    assert [ExampleTokenizer(tokenizer).is_end(token) for token in ids] == [True, False]


def test_columns_by_spec_path() -> None:
    mapped = data("demonstrations", sequence="ids", trained={"mask": "assistant_masks"})
    assert referenced_columns(mapped, "d") == {
        "d.format.tokens.sequence": "ids",
        "d.format.tokens.trained.mask": "assistant_masks",
    }
    assert token_columns(mapped) == {"ids", "assistant_masks"}


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({}, r"row 8 has no column 'prompt_ids'; it has 'a'"),
        ({"prompt_ids": "3 4"}, r"row 8: column 'prompt_ids' holds '3 4' \(str\), not a list"),
        ({"prompt_ids": []}, r"row 8: column 'prompt_ids' holds \[\] \(list\): one token id at least"),
        ({"prompt_ids": [3, 15]}, r"'prompt_ids': item 2 is 15, which is no token of .* ids are 0 to 14, 15"),
        ({"prompt_ids": [3, -1]}, r"'prompt_ids': item 2 is -1, which is no token"),
        ({"prompt_ids": [3.0]}, r"'prompt_ids': item 1 is 3.0 \(float\), not a whole number"),
        ({"prompt_ids": [3, True]}, r"'prompt_ids': item 2 is True \(bool\), not a whole number"),
        ({"prompt_ids": [3, None]}, r"'prompt_ids': item 2 is None \(NoneType\), not a whole number"),
    ],
)
def test_unusable_prompts_are_reported(columns: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        read(data("prompts"), {"a": 1} | columns)


@pytest.mark.parametrize(
    ("trained", "row", "message"),
    [
        ("mask", [0, 0, 0, 1], "row 8: column 't': has 4 items, and 'input_ids' has 5"),
        ("mask", [0, 0, 0, 1, 2], r"'t': item 5 is 2 \(int\), not 0 or 1"),
        ("mask", [0, 0, 0, 1, 1.0], r"'t': item 5 is 1.0 \(float\), not 0 or 1"),
        ("mask", [1, 0, 0, 0, 0], "'t': no token is trained on .the first one cannot be"),
        ("mask", None, r"'t' holds None \(NoneType\), not a list"),
        ("labels", [-100, -100, 14, 7, 1], "'t': item 3 is 14, neither -100 nor the id 6 .* not be shifted"),
        ("labels", [-100] * 5, "'t': no token is trained on"),
        ("labels", [-100] * 6, "'t': has 6 items, and 'input_ids' has 5"),
        ("promptLength", 5, r"'t' holds 5 \(int\), not a whole number from 1 to 4: 'input_ids' has 5 items"),
        ("promptLength", 0, r"'t' holds 0 \(int\), not a whole number from 1 to 4"),
        ("promptLength", True, r"'t' holds True \(bool\), not a whole number"),
    ],
)
def test_trained_tokens_that_do_not_fit_are_reported(trained: str, row: Any, message: str) -> None:
    layout = data("demonstrations", trained={trained: "t"})
    with pytest.raises(DataError, match=message):
        read(layout, {"input_ids": [5, 3, 6, 14, 7], "t": row})
