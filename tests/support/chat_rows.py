"""Rows of conversations as training and sampling read them, and the template's own tokens."""

from typing import Any

from transformers import PreTrainedTokenizerFast

from kubealign.spec.sections.data import Data
from kubealign_services.data.rows.field_mapping import chat_template_kwargs, read_example
from kubealign_services.data.tokenization.example_tokenizer import ExampleTokenizer, TokenizedExample


def tokenize_row(
    tokenizer: PreTrainedTokenizerFast, member: str, row: dict[str, Any], **chat: Any
) -> TokenizedExample:
    """Tokenize the fifth row of a data set of this kind; `chat`: fields of its `format.chat`."""
    source = {"source": {"path": "/rows.jsonl"}}
    data = Data.model_validate({member: source | {"format": {"chat": chat}}}).value
    examples = ExampleTokenizer(tokenizer, chat_template_kwargs(data))
    return examples.tokenize([read_example(data, row, 4)])[0]


def template_ids(tokenizer: PreTrainedTokenizerFast, messages: list[Any], **options: Any) -> list[int]:
    """Return the ids of transformers' `apply_chat_template`."""
    ids = tokenizer.apply_chat_template(messages, tokenize=True, return_dict=False, **options)
    return list(ids)
