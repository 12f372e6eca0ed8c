"""Messages to text: by the tokenizer's own chat template, or by a plain one where it has none."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import jinja2
from transformers import PreTrainedTokenizerBase

from kubealign_services.data.errors import DataError
from kubealign_services.data.example import Message
from kubealign_services.data.tokenizers import begins_with

# Words only, no token of its own: the vocabulary stays as it is. Line ends are in expressions, because a
# template loses those that follow a block.
_MESSAGES = (
    "{% for message in messages %}"
    "{{ message['role'] | capitalize + ':\n' + message['content'] }}"
    "{{ (eos_token if message['role'] == 'assistant' else '') + '\n\n' }}"
    "{% endfor %}"
    "{{ 'Assistant:\n' if add_generation_prompt else '' }}"
)


def ensure_template(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Give the tokenizer the plain template where it has none. True: it did.

    The plain template writes each message as `Role:`, a new line, the content, the end-of-sequence token
    after an assistant's, and an empty line; it begins as the tokenizer begins any text.
    """
    if tokenizer.chat_template:
        return False
    beginning = "{{ bos_token }}" if tokenizer.bos_token_id in begins_with(tokenizer) else ""
    tokenizer.chat_template = beginning + _MESSAGES
    return True


def written(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], number: int, opening: bool = False
) -> str:
    """The messages as the template writes them. opening: and the opening of the assistant's answer. Raises
    DataError for row `number` where the template refuses them."""
    with refused(number):
        text = tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=opening)
    return str(text)


def prompt_text(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], number: int) -> str:
    """The messages as the template writes them, up to where the assistant's answer begins. Raises
    DataError where the template refuses them."""
    return written(tokenizer, messages, number, opening=True)


@contextmanager
def refused(number: int) -> Iterator[None]:
    """What a template raises, as a DataError of row `number`."""
    try:
        yield
    except (jinja2.TemplateError, TypeError, KeyError) as error:
        raise DataError(f"row {number + 1}: the chat template refuses its messages: {error}") from error


def template_texts(messages: Iterable[Message]) -> list[str]:
    """What the plain template writes for these messages: what a tokenizer trained on them has to know."""
    return [f"{message['role'].capitalize()}:\n{message['content']}\n\n" for message in messages]
