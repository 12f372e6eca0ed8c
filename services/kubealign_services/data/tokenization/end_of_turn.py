"""The token that ends the assistant's turn in a chat template."""

from collections.abc import Iterable, Sequence

import jinja2
from transformers import PreTrainedTokenizerBase

_QUESTION, _ANSWER = "kubealign question", "kubealign answer"


def end_of_turn_id(tokenizer: PreTrainedTokenizerBase) -> int | None:
    """Return the id of the special token that ends an answer; None where the template ends it with text, or
    there is no template.

    A short conversation is rendered alone and with a further question: the end follows the answer in both.
    Some templates write further tokens there, such as the opening of the next turn: the tokenizer's
    end-of-sequence token comes first, else the first special token.
    """
    if not tokenizer.chat_template:
        return None
    question = {"role": "user", "content": _QUESTION}
    conversation = [question, {"role": "assistant", "content": _ANSWER}]
    try:
        texts = [
            str(tokenizer.apply_chat_template(messages, tokenize=False))
            for messages in (conversation, [*conversation, question])
        ]
    except (jinja2.TemplateError, TypeError, KeyError, ValueError):
        # The template takes other conversations only; a row that it rejects is reported with its number.
        return None
    alone, followed = (_ids_after_answer(tokenizer, text) for text in texts)
    shared = _common_prefix(alone, followed)
    # Some templates end the whole conversation only.
    candidates = _special_ids(tokenizer, shared) or _special_ids(tokenizer, alone)
    is_eos = (token for token in candidates if token == tokenizer.eos_token_id)
    return next(is_eos, candidates[0] if candidates else None)


def without_unknown(tokenizer: PreTrainedTokenizerBase, ids: Iterable[int | None]) -> set[int | None]:
    """Return the ids without that of unknown text, and with the end-of-sequence token, which stands for
    unknown text too in a tokenizer such as GPT-2's.
    """
    return {*ids} - {tokenizer.unk_token_id} | {tokenizer.eos_token_id}


def _ids_after_answer(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    _, _, rest = text.partition(_ANSWER)
    return list(tokenizer(rest, add_special_tokens=False)["input_ids"])


def _special_ids(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> list[int]:
    added = getattr(tokenizer, "added_tokens_decoder", {})
    special = without_unknown(tokenizer, [*tokenizer.all_special_ids, *added])
    return [token for token in ids if token in special]


def _common_prefix(first: Sequence[int], second: Sequence[int]) -> list[int]:
    pairs = zip(first, second, strict=False)
    length = next((index for index, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))
    return list(first[:length])
