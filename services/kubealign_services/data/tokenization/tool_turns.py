"""Text and tokens between a turn that calls tools and the next turn, as the chat template renders them.

A response is never rendered again: its tokens stay as they were generated, and what the template writes from
the end of a turn with calls to the opening of the next one is appended. This text is taken from a short
conversation, so that a template that renders earlier turns differently once others follow (as Qwen 3 removes
reasoning) does not change a response.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from transformers import PreTrainedTokenizerBase

from kubealign_services.data.errors import DataError
from kubealign_services.data.rows.example import Message
from kubealign_services.data.tokenization.end_of_turn import end_of_turn_id
from kubealign_services.data.tokenization.tokenizers import decode_ids
from kubealign_services.data.tokenization.turn_template import TurnTemplate

_QUESTION: Message = {"role": "user", "content": "kubealign question"}
_REASONING_END, _REASONING_START = "</think>", "<think>"
#: Argument of the calls of the short conversation.
_ARGUMENT = "example"


@dataclass(frozen=True)
class ToolResult:
    """Result of a call: the tool's answer, or an error. name: that of the tool that was called."""

    name: str
    text: str


class ToolTurns:
    """Renders results of tools with the chat template of a tokenizer.

    Args:
        schemas: JSON schemas of the tools, at least one.
        variables: Variables of the chat template.
        is_parallel: A turn may have several calls.

    Raises:
        DataError: The template does not render tools, calls or results, or not several calls, or ends a turn
            without a special token.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        schemas: Sequence[Mapping[str, Any]],
        variables: Mapping[str, Any],
        *,
        is_parallel: bool,
    ) -> None:
        self._template = _ToolTemplate(tokenizer, schemas, variables)
        self._names = [str(schema["function"]["name"]) for schema in schemas]
        self._tokenizer = tokenizer
        self._ends = {tokenizer.eos_token_id, end_of_turn_id(tokenizer)} - {None}
        _check_tools(self._template, self._names)
        self._check_results(1)
        if is_parallel:
            try:
                self._check_results(2)
            except DataError as error:
                raise DataError(
                    f"{error}; with one call in a turn it does: set "
                    "spec.rollout.workflow.toolCalls.parallelCalls to false"
                ) from error

    def example_turn(self) -> tuple[str, str, dict[str, Any]]:
        """Return (text of a turn with one call, as `turn_text` has it, name of the call's tool, the call's
        arguments).
        """
        call = ToolResult(self._names[0], "")
        text, end = self._template.render_results([call])
        opening = self._template.render_question()
        pairs = enumerate(zip(opening, text, strict=False))
        start = next((index for index, (a, b) in pairs if a != b), min(len(opening), len(text)))
        end -= len(self._template.end_token(text, end))
        return without_reasoning(text[start:end]), call.name, _arguments(0)

    def turn_text(self, tokens: Sequence[int]) -> str:
        """Return the text of a turn with its special tokens, without reasoning and without its end."""
        last = len(tokens) - (len(tokens) > 0 and tokens[-1] in self._ends)
        return without_reasoning(decode_ids(self._tokenizer, tokens[:last]))

    def follow(self, tokens: Sequence[int], results: Sequence[ToolResult]) -> list[int]:
        """Return the tokens that follow a turn with calls: its end where the policy did not write one, the
        results, and the opening of the next turn.

        Special tokens in a result are encoded as text, so that no tool can end the turn.

        Args:
            tokens: Tokens of the turn.
            results: Result of each call.
        """
        known = [
            ToolResult(one.name if one.name in self._names else self._names[0], _encodable(one.text))
            for one in results
        ]
        is_ended = bool(tokens) and tokens[-1] in {*self._ends, *self._tokenizer.all_special_ids}
        return self._template.encode_results(known, keep_end=not is_ended)

    def _check_results(self, count: int) -> None:
        """Raise DataError where results of `count` calls are not in the text."""
        marks = [f"kubealign result {index}" for index in range(count)]
        text, end = self._template.render_results([ToolResult(self._names[0], mark) for mark in marks])
        for mark in marks:
            if mark not in text[end:]:
                raise DataError(
                    f"{self._template.label} does not render {_count(count, 'message')} with the role tool: "
                    "give the tokenizer a template that renders results of tools"
                )


class _ToolTemplate:
    """The chat template with the tools of a job."""

    label = "spec.policy.model: the chat template of its tokenizer"

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        schemas: Sequence[Mapping[str, Any]],
        variables: Mapping[str, Any],
    ) -> None:
        self.tokenizer = tokenizer
        self._template = TurnTemplate(tokenizer, self.label, dict(variables), tuple(schemas))

    def render_question(self, *, has_tools: bool = True) -> str:
        """Return the text of a question with the opening of its answer.

        Raises DataError where the template rejects it.
        """
        template = self._template if has_tools else replace(self._template, tools=None)
        return template.text([_QUESTION], "a question")

    def render_results(self, results: Sequence[ToolResult]) -> tuple[str, int]:
        """Return (text of a conversation with results, position after the end of the turn with the calls).

        Raises:
            DataError: The template rejects the conversation, or does not render calls.
        """
        text = self._template.text(_conversation(results), _rejected(results))
        mark = str(_arguments(len(results) - 1)[_ARGUMENT])
        at = text.find(mark)
        if at < 0:
            raise DataError(
                f"{self.label} does not render {_count(len(results), 'call')} of a tool (tool_calls of an "
                "assistant's message): give the tokenizer a template that renders calls"
            )
        ends = [(start, token) for token in self._end_tokens() if (start := text.find(token, at)) >= 0]
        if not ends:
            raise DataError(
                f"{self.label} ends a turn with calls with none of {' and '.join(self._end_tokens())}: give "
                "the tokenizer a template that ends each turn with a special token"
            )
        position, token = min(ends)
        return text, position + len(token)

    def end_token(self, text: str, end: int) -> str:
        """Return the token that ends at this position."""
        return next(token for token in self._end_tokens() if text.endswith(token, 0, end))

    def encode_results(self, results: Sequence[ToolResult], *, keep_end: bool) -> list[int]:
        """Return the ids after the turn with the calls, with its end token if `keep_end`."""
        text, end = self.render_results(results)
        before = text[: end - len(self.end_token(text, end))] if keep_end else text[:end]
        conversation = _conversation(results)
        return self._template.ids_after(before, conversation, _rejected(results), "a turn with calls")

    def _end_tokens(self) -> list[str]:
        ids = {end_of_turn_id(self.tokenizer), self.tokenizer.eos_token_id} - {None}
        return [str(self.tokenizer.convert_ids_to_tokens(token)) for token in sorted(ids, key=str)]


def _check_tools(template: _ToolTemplate, names: Sequence[str]) -> None:
    """Raise DataError where the template does not write the tools into a prompt."""
    text = template.render_question()
    try:
        without = template.render_question(has_tools=False)
    except DataError:
        # A template that cannot do without tools reads them.
        without = ""
    if text == without:
        raise DataError(
            f"{template.label} does not read tools, so the policy would not see them: give the tokenizer a "
            "template that does, or remove spec.rollout.workflow.toolCalls"
        )
    absent = [name for name in names if name not in text]
    if absent:
        raise DataError(f"{template.label} does not write the tools {', '.join(absent)} into the prompt")


def _conversation(results: Sequence[ToolResult]) -> list[Message]:
    """Return a question, a turn with a call for each result, and the results."""
    # Nine characters: templates of Mistral take no other identifiers.
    ids = [f"{index:09d}" for index in range(len(results))]
    calls = [
        {"id": id_, "type": "function", "function": {"name": result.name, "arguments": _arguments(index)}}
        for index, (id_, result) in enumerate(zip(ids, results, strict=True))
    ]
    answers = [
        {"role": "tool", "tool_call_id": id_, "name": result.name, "content": result.text}
        for id_, result in zip(ids, results, strict=True)
    ]
    return [_QUESTION, {"role": "assistant", "content": "", "tool_calls": calls}, *answers]


def _rejected(results: Sequence[ToolResult]) -> str:
    """Return the description of the conversation of `results` for errors."""
    return f"{_count(len(results), 'call')} of a tool"


@lru_cache
def _arguments(index: int) -> dict[str, str]:
    return {_ARGUMENT: f"kubealign call {index}"}


def without_reasoning(text: str) -> str:
    """Return the text after the reasoning; that before it where the reasoning does not end."""
    _, end, after = text.rpartition(_REASONING_END)
    return after if end else text.partition(_REASONING_START)[0]


def _encodable(text: str) -> str:
    """Return the text without lone surrogates, which no tokenizer encodes."""
    return text.encode(errors="replace").decode()


def _count(number: int, noun: str) -> str:
    return f"a {noun}" if number == 1 else f"{number} {noun}s"
