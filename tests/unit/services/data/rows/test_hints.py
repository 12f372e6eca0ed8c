"""Hints of rows in prompts of text and of messages."""

from typing import Any

import pytest

from kubealign.spec.algorithms import Hint
from kubealign.spec.sections.data import Data
from kubealign_services.data.errors import DataError
from kubealign_services.data.rows.field_mapping import read_example
from kubealign_services.data.rows.hints import add_hint

SYSTEM = {"role": "system", "content": "Be brief."}
USER = {"role": "user", "content": "2+2?"}
ASSISTANT = {"role": "assistant", "content": "4"}
AGAIN = {"role": "user", "content": "3+3?"}


def hinted(hint: dict[str, Any], row: dict[str, Any], **fields: Any) -> Any:
    chat = "messages" in row
    layout = {"format": {"chat": {}}} if chat else {}
    data = Data.model_validate({"prompts": {"source": {"path": "/rows.jsonl"}} | layout | fields}).value
    example = read_example(data, row, 4)
    result = add_hint(example, Hint.model_validate(hint), data, row)
    assert result.number == example.number and result.tools == example.tools
    return result.prompt


def test_a_text_prompt_is_replaced_by_the_filled_template() -> None:
    template = "Solution: {answer} {{x}}\n{prompt}"
    assert hinted({"template": template}, {"prompt": "2+2=", "answer": 4.0}) == "Solution: 4 {x}\n2+2="


def test_the_placeholder_of_the_prompt_is_what_the_policy_reads() -> None:
    row = {"prompt": "2+2", "answer": "4"}
    assert hinted({"template": "{prompt} ({answer})"}, row, template="Q: {prompt}\nA:") == "Q: 2+2\nA: (4)"


def test_the_last_message_of_the_user_carries_the_hint() -> None:
    row = {"messages": [SYSTEM, USER, ASSISTANT, AGAIN], "answer": "6"}
    expected = [SYSTEM, USER, ASSISTANT, {"role": "user", "content": "3+3? Hint: 6"}]
    assert hinted({"template": "{prompt} Hint: {answer}"}, row) == expected


def test_a_system_message_carries_the_hint() -> None:
    hint = {"template": "The answer is {answer}.", "message": "System"}
    assert hinted(hint, {"messages": [USER], "answer": 4}) == [
        {"role": "system", "content": "The answer is 4."},
        USER,
    ]
    assert hinted(hint, {"messages": [SYSTEM, USER], "answer": 4}) == [
        {"role": "system", "content": "Be brief.\n\nThe answer is 4."},
        USER,
    ]
    hint["template"] = "{prompt} gives {answer}"
    assert hinted(hint, {"messages": [USER], "answer": 4})[0]["content"] == "2+2? gives 4"


@pytest.mark.parametrize("value", [None, [4], {"text": "4"}])
def test_a_hint_that_is_no_text_is_refused(value: Any) -> None:
    problem = "row 5: column 'answer' holds .*, not a text, number or list of texts to be put"
    with pytest.raises(DataError, match=problem):
        hinted({"template": "{prompt}{answer}"}, {"prompt": "2+2=", "answer": value})


def test_a_row_without_the_column_is_refused() -> None:
    with pytest.raises(DataError, match="row 5 has no column 'answer'"):
        hinted({"template": "{prompt}{answer}"}, {"prompt": "2+2="})
