"""Chat requests in the policy's format: prompts, continued conversations and tool calls."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from transformers import PreTrainedTokenizerBase

from kubealign.spec.workflows.tool_calls import ToolCallFormat
from kubealign_services.data.errors import DataError
from kubealign_services.data.tokenization.message_turns import MessageTurns
from kubealign_services.data.tokenization.tokenizers import decode_ids, prefix_ids
from kubealign_services.data.tokenization.tool_turns import ToolTurns, without_reasoning
from kubealign_services.data.tokenization.turn_template import TurnTemplate
from kubealign_services.roles.rollout.agents.errors import ApiError
from kubealign_services.roles.rollout.agents.sequences import Continuation, Message
from kubealign_services.tools.parsers.contract import ToolCall, ToolCallParser
from kubealign_services.tools.parsers.registry import PARSERS, detect_format

_LABEL = "the chat template of the policy"

_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Renderer:
    """Chat template with the tools of a request, as `ConversationRenderer`.

    parser: reads calls; None: the request has no tools.
    """

    template: TurnTemplate
    turns: MessageTurns
    parser: ToolCallParser | None = None

    def text(self, messages: Sequence[Message]) -> str:
        """Return the text of messages with the opening of an answer. Raises ApiError."""
        return _refusing(lambda: self.template.text(_as_dicts(messages), "the messages"))

    def ids(self, messages: Sequence[Message]) -> list[int]:
        """Return the ids of `text`; special tokens in a message are encoded as text. Raises ApiError."""
        return _refusing(lambda: self.template.ids(_as_dicts(messages), "the messages"))

    def after(self, turn: Sequence[int], messages: Sequence[Message]) -> Continuation | None:
        """Return the messages that follow a turn; None: the template does not take them so."""
        following = _as_dicts(messages)
        try:
            return Continuation(self.turns.text_after(turn, following), self.turns.follow(turn, following))
        except DataError:
            return None


class Conversations:
    """Renders chat requests for the policy and reads its answers.

    Args:
        variables: Variables of the chat template.
        parser: Format of tool calls.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, variables: Mapping[str, Any], parser: ToolCallFormat
    ) -> None:
        self._tokenizer, self._variables, self._format = tokenizer, dict(variables), parser
        try:
            self._turns = MessageTurns(tokenizer, variables)
            self._problem = ""
        except DataError as error:
            self._problem = str(error)
        # Renderers by the tools of a request: an agent sends the same ones with each.
        self._renderers: dict[str, Renderer] = {}

    def renderer(self, tools: Sequence[Mapping[str, Any]]) -> Renderer:
        """Return the renderer of requests with these tools.

        Raises ApiError where the tokenizer has no template for chats, or the template does not take tools.
        """
        if self._problem:
            raise ApiError(400, f"{self._problem}; /v1/completions needs no template", "messages")
        key = json.dumps(list(tools), sort_keys=True)
        if key not in self._renderers:
            template = TurnTemplate(self._tokenizer, _LABEL, self._variables, tuple(tools) or None)
            parser = self._make_parser(tools) if tools else None
            self._renderers[key] = Renderer(template, self._turns, parser)
        return self._renderers[key]

    def encode_prompt(self, text: str) -> list[int]:
        """Return the ids of a prompt of /v1/completions, as a job's text prompt has them."""
        return [*prefix_ids(self._tokenizer), *self.encode(text)]

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text."""
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def raw_text(self, tokens: Sequence[int], before: Sequence[int] = ()) -> str:
        """Return the text of ids with its special tokens.

        Args:
            before: Ids before them. Some tokenizers drop the space that a text begins with.
        """
        first = list(before[-1:])
        text = decode_ids(self._tokenizer, [*first, *tokens])
        return text.removeprefix(decode_ids(self._tokenizer, first))

    def without_end(self, tokens: Sequence[int]) -> list[int]:
        """Return the ids of a turn without the special token that ended it."""
        is_ended = bool(tokens) and tokens[-1] in self._tokenizer.all_special_ids
        return list(tokens[: len(tokens) - is_ended])

    def piece(self, token: int) -> str:
        """Return the text of one token."""
        return self.raw_text([token])

    def _make_parser(self, tools: Sequence[Mapping[str, Any]]) -> ToolCallParser:
        def make() -> ToolCallParser:
            turns = ToolTurns(self._tokenizer, tools, self._variables, is_parallel=False)
            return PARSERS[detect_format(turns) if self._format is ToolCallFormat.AUTO else self._format]()

        return _refusing(make, "tools")


def read_calls(parser: ToolCallParser, raw: str, prefix: str) -> list[dict[str, Any]]:
    """Return the tool calls of an answer in the API's form; none where one of them cannot be read.

    Args:
        raw: Text of the turn, with special tokens and without its end.
        prefix: Beginning of the calls' ids, unique to the turn.
    """
    calls = parser.parse(without_reasoning(raw))
    if not all(isinstance(call, ToolCall) for call in calls):
        return []
    return [
        {
            "id": f"{prefix}_{index}",
            "type": "function",
            "function": {"name": call.name, "arguments": json.dumps(call.arguments)},
        }
        for index, call in enumerate(calls)
        if isinstance(call, ToolCall)
    ]


def _as_dicts(messages: Sequence[Message]) -> list[Any]:
    return [dict(message) for message in messages]


def _refusing(call: Callable[[], _Result], param: str = "messages") -> _Result:
    """Return the result of a call whose DataError is one of the request."""
    try:
        return call()
    except DataError as error:
        raise ApiError(400, str(error), param) from error
