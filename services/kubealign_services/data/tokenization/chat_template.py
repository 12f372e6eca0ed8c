"""Rendering of messages to text, with the tokenizer's chat template or a plain default."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jinja2
from transformers import PreTrainedTokenizerBase
from transformers.utils.chat_template_utils import render_jinja_template

from kubealign.spec.sections.models import ChatTemplateSource
from kubealign_services.data.errors import DataError, RowError
from kubealign_services.data.rows.example import Example, Message
from kubealign_services.data.tokenization.tokenizers import prefix_ids

#: Errors with which a chat template rejects messages.
TEMPLATE_ERRORS = (jinja2.TemplateError, TypeError, KeyError)

# Plain words and no special tokens: the vocabulary is unchanged. Line breaks are inside expressions, because
# jinja strips those that follow a block.
_MESSAGES = (
    "{% for message in messages %}"
    "{{ message['role'] | capitalize + ':\n' + message['content'] }}"
    "{{ (eos_token if message['role'] == 'assistant' else '') + '\n\n' }}"
    "{% endfor %}"
    "{{ 'Assistant:\n' if add_generation_prompt else '' }}"
)


def ensure_chat_template(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Give the tokenizer the plain template where it has none; return True if it did not have one.

    The plain template writes each message as `Role:`, a new line, the content, the end-of-sequence token
    after an assistant's message, and an empty line; it begins as the tokenizer begins any text.
    """
    if tokenizer.chat_template:
        return False
    tokenizer.chat_template = _plain_template(tokenizer)
    return True


def read_chat_template(source: ChatTemplateSource) -> str:
    """Return the chat template of the job. Raises DataError where it cannot be read or is no template."""
    path, text = f"spec.policy.chatTemplate.{source.member}", source.text
    if text is None:
        try:
            text = Path(str(source.path)).read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"{path}: {source.path} cannot be read: {error}") from error
    try:
        # Without conversations it only compiles the template.
        render_jinja_template([], chat_template=text)
    except jinja2.TemplateSyntaxError as error:
        raise DataError(f"{path}: line {error.lineno}: {error.message}") from error
    return text


def has_plain_template(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Return True if the tokenizer's template is the plain one, as `ensure_chat_template` sets it."""
    return bool(tokenizer.chat_template == _plain_template(tokenizer))


def _plain_template(tokenizer: PreTrainedTokenizerBase) -> str:
    beginning = "{{ bos_token }}" if tokenizer.bos_token_id in prefix_ids(tokenizer) else ""
    return beginning + _MESSAGES


@dataclass(frozen=True)
class ChatTemplate:
    """The chat template of a tokenizer, with the job's variables of the template."""

    tokenizer: PreTrainedTokenizerBase
    variables: Mapping[str, Any] = field(default_factory=dict)

    def render(self, messages: Sequence[Message], example: Example, opening: bool = False) -> str:
        """Render messages of an example, with its tools.

        Args:
            opening: Append the opening of the assistant's answer.

        Raises DataError for the example's row where the template rejects the messages.
        """
        with template_errors(example.number):
            text = self.tokenizer.apply_chat_template(
                list(messages),
                tools=example.tools,
                tokenize=False,
                add_generation_prompt=opening,
                **self.variables,
            )
        return str(text)


def check_template_variables(tokenizer: PreTrainedTokenizerBase, fields: Mapping[str, str]) -> None:
    """Raise DataError for a variable that the chat template does not read: it would be ignored.

    Args:
        fields: Variable -> path of the field of the spec that sets it.
    """
    templates = tokenizer.chat_template
    text = "\n".join(templates.values()) if isinstance(templates, dict) else str(templates)
    for name, path in fields.items():
        if not re.search(rf"\b{re.escape(name)}\b", text):
            raise DataError(
                f"{path}: the tokenizer's chat template has no variable {name}, so it would be ignored: "
                "remove it, or give the tokenizer a template that reads it"
            )


@contextmanager
def template_errors(number: int) -> Iterator[None]:
    """Convert template errors to a DataError of row `number`."""
    try:
        yield
    except TEMPLATE_ERRORS as error:
        raise RowError(number, f": the chat template rejects its messages: {error}") from error


def plain_template_texts(messages: Iterable[Message]) -> list[str]:
    """Return the plain template's text of these messages, as training text for a tokenizer."""
    return [f"{message['role'].capitalize()}:\n{message.get('content', '')}\n\n" for message in messages]
