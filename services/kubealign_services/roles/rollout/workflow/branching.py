"""Further sequences of an episode: their number, and the tokens of their prompts."""

from collections.abc import Mapping, Sequence
from copy import copy
from functools import cached_property
from types import MappingProxyType
from typing import Any

from transformers import PreTrainedTokenizerBase

from kubealign_services.data.errors import DataError
from kubealign_services.data.rows.example import Message
from kubealign_services.data.tokenization.tokenizers import prefix_ids
from kubealign_services.data.tokenization.turn_template import TurnTemplate


class Branching:
    """Limits of the sequences of an episode, and the encoding of their prompts.

    Args:
        max_sequences: Maximum number of sequences of an episode: rollout.maxSequencesPerSample.
        longest_prompt: Tokens of the longest prompt of the job's data; None: that of the episode.
        variables: Variables of the chat template.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        max_sequences: int = 1,
        longest_prompt: int | None = None,
        variables: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self.max_sequences, self.longest_prompt = max_sequences, longest_prompt
        self._tokenizer = tokenizer
        label = f"the chat template of {tokenizer.name_or_path or 'the tokenizer'}"
        self._template = TurnTemplate(tokenizer, label, dict(variables))

    def with_max_sequences(self, max_sequences: int) -> "Branching":
        """Return a copy with another maximum number of sequences."""
        branching = copy(self)
        branching.max_sequences = max_sequences
        return branching

    def check_count(self, count: int) -> None:
        """Raise ValueError if an episode of `count` sequences cannot begin another one."""
        if count >= self.max_sequences:
            raise ValueError(
                f"episode.branch: the episode has {count} of at most {self.max_sequences} sequences: raise "
                "rollout.maxSequencesPerSample"
            )

    def encode_prompt(
        self, messages: Sequence[Message] | None, text: str | None, tokens: Sequence[int] | None
    ) -> list[int]:
        """Return the tokens of a prompt: messages with the opening of an answer, a text, or ids.

        Special tokens in a message are encoded as text, so that no answer of the policy ends its message.

        Raises ValueError unless exactly one of them is given and yields ids of the vocabulary, one at least.
        """
        if sum(each is not None for each in (messages, text, tokens)) != 1:
            raise ValueError("episode.branch takes exactly one of messages, text and tokens")
        if messages is not None:
            ids = self._render(messages)
        elif text is not None:
            ids = [
                *prefix_ids(self._tokenizer),
                *self._tokenizer(text, add_special_tokens=False)["input_ids"],
            ]
        else:
            ids = [int(token) for token in tokens or ()]
        if not ids:
            raise ValueError("episode.branch: the prompt has no token")
        beyond = next((token for token in ids if not 0 <= token < self._vocabulary), None)
        if beyond is not None:
            raise ValueError(
                f"episode.branch: the prompt has the token {beyond}; those of the policy are 0 to "
                f"{self._vocabulary - 1}"
            )
        return ids

    def _render(self, messages: Sequence[Message]) -> list[int]:
        if not self._tokenizer.chat_template:
            raise ValueError("episode.branch: the tokenizer has no chat template for messages: give a text")
        try:
            return self._template.ids(messages, "the messages of episode.branch")
        except DataError as error:
            raise ValueError(str(error)) from error

    @cached_property
    def _vocabulary(self) -> int:
        return len(self._tokenizer)
