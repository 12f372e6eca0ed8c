"""Chat template of a tokenizer, as it renders a short conversation, and the tokens that follow a turn in it.

What follows a turn is taken from a short conversation, and not from a response, which is never rendered
again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from transformers import PreTrainedTokenizerBase

from kubealign_services.data.errors import DataError
from kubealign_services.data.rows.example import Message
from kubealign_services.data.tokenization.chat_template import TEMPLATE_ERRORS


@dataclass(frozen=True)
class TurnTemplate:
    """Chat template with the job's variables.

    tools: JSON schemas that the template writes into the prompt; None: none. label: description of the
    template for errors.
    """

    tokenizer: PreTrainedTokenizerBase
    label: str
    variables: Mapping[str, Any] = field(default_factory=dict)
    tools: Sequence[Mapping[str, Any]] | None = None

    def text(self, messages: Sequence[Message], rejected: str) -> str:
        """Return the text of messages, with the opening of an answer.

        Args:
            rejected: Description of the messages for the error.

        Raises DataError where the template rejects them.
        """
        return str(self._apply(messages, rejected, tokenize=False))

    def ids(self, messages: Sequence[Message], rejected: str) -> list[int]:
        """Return the ids of messages, with the opening of an answer.

        Special tokens in a message are encoded as text.

        Args:
            rejected: As in `text`.

        Raises DataError where the template rejects the messages.
        """
        return list(self._apply(messages, rejected, tokenize=True))

    def ids_after(self, before: str, messages: Sequence[Message], rejected: str, boundary: str) -> list[int]:
        """Return the ids of messages, with the opening of an answer, after the text `before`.

        Special tokens in a message are encoded as text.

        Args:
            before: Beginning of the messages' text.
            rejected: As in `text`.
            boundary: Description of the end of `before` for the error.

        Raises DataError where the template rejects the messages, or no token begins after `before`.
        """
        ids = self.ids(messages, rejected)
        prefix = list(self.tokenizer(before, add_special_tokens=False)["input_ids"])
        if ids[: len(prefix)] != prefix:
            raise self.no_boundary(boundary)
        return ids[len(prefix) :]

    def no_boundary(self, boundary: str) -> DataError:
        """Return the error of a place at which no token begins."""
        return DataError(f"{self.label} has no token boundary at the end of {boundary}")

    def _apply(self, messages: Sequence[Message], rejected: str, *, tokenize: bool) -> Any:
        try:
            return self.tokenizer.apply_chat_template(
                list(messages),
                tools=None if self.tools is None else list(self.tools),
                add_generation_prompt=True,
                tokenize=tokenize,
                return_dict=False,
                sanitize_control_tokens=tokenize,
                **self.variables,
            )
        except TEMPLATE_ERRORS as error:
            raise DataError(f"{self.label} rejects {rejected}: {error}") from error
