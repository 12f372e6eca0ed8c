"""Tokens between a turn of the policy and its next turn in a chat: the messages of an environment.

A response is never rendered again: its tokens stay as they were generated, and what the template writes from
the end of the assistant's message to the opening of the next one is appended. It is taken from a short
conversation, so that a template that renders earlier answers differently does not change the response.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from kubealign_services.data.errors import DataError
from kubealign_services.data.rows.example import Message
from kubealign_services.data.tokenization.end_of_turn import end_of_turn_id
from kubealign_services.data.tokenization.turn_template import TurnTemplate

_QUESTION, _ANSWER = "kubealign question", "kubealign answer"
#: Descriptions for errors.
_REJECTED, _BOUNDARY = "the messages of an environment", "an answer that is followed"
_BEGINNING: tuple[Message, ...] = (
    {"role": "user", "content": _QUESTION},
    {"role": "assistant", "content": _ANSWER},
)


class MessageTurns:
    """Renders messages that follow a turn of the policy, with the chat template of a tokenizer.

    Args:
        variables: Variables of the chat template.

    Raises:
        DataError: The tokenizer has no chat template, or the template ends an answer without a special token.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, variables: Mapping[str, Any]) -> None:
        label = f"spec.policy.model: the chat template of {tokenizer.name_or_path or 'its tokenizer'}"
        self._template = TurnTemplate(tokenizer, label, dict(variables))
        end = end_of_turn_id(tokenizer)
        if end is None:
            raise DataError(
                f"{label} does not end an answer with a special token, or there is none: give the "
                "tokenizer such a template, or set spec.rollout.workflow.environment.observation to Text"
            )
        self._end = end
        self.follow([], [{"role": "user", "content": _QUESTION}])

    def follow(self, turn: Sequence[int], messages: Sequence[Message]) -> list[int]:
        """Return the ids that follow a turn: its end where the policy did not write one, the messages, and
        the opening of the next turn.

        Special tokens in a message are encoded as text, so that no environment can end its message.

        Args:
            turn: Ids of the turn.

        Raises:
            DataError: The template rejects the messages.
        """
        conversation, text, end = self._render(messages)
        following = self._template.ids_after(text[:end], conversation, _REJECTED, _BOUNDARY)
        if following[:1] != [self._end]:
            raise self._template.no_boundary(_BOUNDARY)
        return following[self._is_ended(turn) :]

    def text_after(self, turn: Sequence[int], messages: Sequence[Message]) -> str:
        """Return the text of the ids of `follow`. Raises DataError as `follow`."""
        _, text, end = self._render(messages)
        return text[end + self._is_ended(turn) * len(self._end_text) :]

    def _render(self, messages: Sequence[Message]) -> tuple[list[Message], str, int]:
        """Return (a short conversation with the messages, its text, position of the end of its answer)."""
        conversation = [*_BEGINNING, *messages]
        text = self._template.text(conversation, _REJECTED)
        end = text.find(self._end_text, text.index(_ANSWER) + len(_ANSWER))
        if end < 0:
            raise self._template.no_boundary(_BOUNDARY)
        return conversation, text, end

    @property
    def _end_text(self) -> str:
        return str(self._template.tokenizer.convert_ids_to_tokens(self._end))

    def _is_ended(self, turn: Sequence[int]) -> bool:
        return bool(turn) and turn[-1] in {self._end, self._template.tokenizer.eos_token_id}
