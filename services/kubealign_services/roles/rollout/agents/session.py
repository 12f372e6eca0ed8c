"""Session of an agent: the requests that it makes for one response become turns of an episode."""

import asyncio
import json
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from kubealign.spec.workflows.agents import OtherSampling
from kubealign_services.generation.contract import EngineLost, FinishReason, RequestRefused
from kubealign_services.roles.rollout.agents.conversations import Conversations, Renderer, read_calls
from kubealign_services.roles.rollout.agents.errors import ApiError, no_room
from kubealign_services.roles.rollout.agents.requests import ChatRequest, TextRequest
from kubealign_services.roles.rollout.agents.sequences import (
    AnswerRecord,
    Continuation,
    SequenceRecord,
    choose_sequence,
    continue_chat,
    continue_text,
    continue_tokens,
)
from kubealign_services.roles.rollout.workflow.contract import WorkflowFailed
from kubealign_services.roles.rollout.workflow.episode import Episode

#: Message for requests after the end of a session.
SESSION_IS_OVER = "the session of this API key is over"

_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Answer:
    """Answer of the policy to a request.

    number: of the turn in the session, from 0. text: without stop strings and special tokens. calls: tool
    calls in the API's form. tokens, logprobs: those that were sampled, with the token that ended the turn;
    natural logarithms under the distribution that was sampled from. pieces: text of each token. notes: what
    differs from the request.
    """

    number: int
    text: str
    finish: FinishReason
    prompt_tokens: int
    tokens: Sequence[int]
    logprobs: Sequence[float]
    pieces: Sequence[str]
    calls: Sequence[dict[str, Any]] = ()
    notes: Sequence[str] = ()


@dataclass
class _Sequence(SequenceRecord):
    """Sequence of a session with its episode."""

    episode: Episode = field(kw_only=True)


class AgentSession:
    """Serves the requests of one agent; several of them may run at the same time.

    A request that continues no sequence begins one. The first one with the row's own prompt is the episode's
    first sequence.

    Args:
        max_sequences: Maximum number of sequences: rollout.maxSequencesPerSample.
    """

    def __init__(
        self, episode: Episode, conversations: Conversations, max_sequences: int, other: OtherSampling
    ) -> None:
        self._episode, self._conversations = episode, conversations
        self._max_sequences, self._other = max_sequences, other
        self._sequences: list[_Sequence] = []
        self._turns = 0
        self._running: set[asyncio.Task[Any]] = set()
        self._is_over = False
        #: Set to the error that ends the episode, whatever the agent does.
        self.failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def chat(self, request: ChatRequest) -> Answer:
        """Generate an answer to messages. Raises ApiError."""
        renderer = self._conversations.renderer(request.tool_schemas)
        messages = request.conversation

        async def answer() -> Answer:
            notes = self._check_sampling(request)
            sequence = self._enter(
                lambda record: continue_chat(record, messages, renderer),
                lambda: (renderer.text(messages), renderer.ids(messages)),
                "messages",
            )
            reply = await self._generate(sequence, request, notes)
            return self._record_answer(sequence, len(messages), reply, renderer)

        return await self._run(answer())

    async def complete(self, request: TextRequest) -> Answer:
        """Generate the completion of a text or of ids. Raises ApiError."""
        prompt, conversations = request.prompt, self._conversations

        def continue_one(record: SequenceRecord) -> Continuation | None:
            if isinstance(prompt, str):
                return continue_text(record, prompt, conversations.encode)
            return continue_tokens(
                record, prompt, lambda following: conversations.raw_text(following, record.tokens)
            )

        def begin() -> tuple[str, list[int]]:
            if isinstance(prompt, str):
                return prompt, conversations.encode_prompt(prompt)
            return conversations.raw_text(prompt), list(prompt)

        async def answer() -> Answer:
            notes = self._check_sampling(request)
            return await self._generate(self._enter(continue_one, begin, "prompt"), request, notes)

        return await self._run(answer())

    async def close(self) -> None:
        """Refuse further requests, and cancel those that run."""
        self._is_over = True
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        self.failure.cancel()

    async def _run(self, call: Coroutine[Any, Any, _Result]) -> _Result:
        """Run a request so that `close` can cancel it."""
        if self._is_over:
            call.close()
            raise ApiError(401, SESSION_IS_OVER, code="invalid_api_key")
        task = asyncio.create_task(call)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        try:
            return await task
        except asyncio.CancelledError:
            if self._is_over and not _is_cancelled():
                raise ApiError(401, SESSION_IS_OVER, code="invalid_api_key") from None
            raise

    def _enter(
        self,
        continue_one: Callable[[SequenceRecord], Continuation | None],
        begin: Callable[[], tuple[str, list[int]]],
        param: str,
    ) -> _Sequence:
        """Return the sequence of a request, with the tokens up to the policy's turn in it. Marks it as busy.

        Args:
            begin: Returns (text, ids) of the prompt.

        Raises ApiError where the prompt leaves no room.
        """
        choice = choose_sequence(self._sequences, continue_one)
        if choice is not None:
            sequence, continuation = choice
            if not sequence.episode.append(continuation.tokens):
                count = len(sequence.tokens) + len(continuation.tokens)
                raise no_room(
                    f"a conversation of {count} tokens leaves the policy no room: a response has at most "
                    f"{sequence.episode.sampling.max_tokens} tokens (rollout.sampling.maxTokens)",
                    param,
                )
            sequence.tokens += continuation.tokens
            sequence.text += continuation.text
        else:
            text, ids = begin()
            sequence = _Sequence(text, ids, episode=self._begin(ids, param))
            self._sequences.append(sequence)
        sequence.is_busy = True
        return sequence

    def _begin(self, ids: list[int], param: str) -> Episode:
        """Return the episode of another sequence. Raises ApiError."""
        first = self._episode
        self._check_count()
        is_first_free = all(sequence.episode is not first for sequence in self._sequences)
        if is_first_free and tuple(ids) == first.prompt_tokens:
            return first
        try:
            return first.branch(tokens=ids)
        except ValueError as error:
            raise no_room(str(error), param) from error

    def _check_count(self) -> None:
        """Raise ApiError, and end the episode, if no other sequence may begin."""
        if len(self._sequences) < self._max_sequences:
            return
        message = (
            f"a request continues none of the {len(self._sequences)} sequences of its session, and at most "
            f"{self._max_sequences} may begin: raise rollout.maxSequencesPerSample, or send earlier messages "
            "back as they were received"
        )
        self._fail(WorkflowFailed(message))
        raise ApiError(400, message, code="too_many_sequences")

    async def _generate(
        self, sequence: _Sequence, request: ChatRequest | TextRequest, notes: Sequence[str]
    ) -> Answer:
        """Generate a turn of a busy sequence. Raises ApiError."""
        number, self._turns = self._turns, self._turns + 1
        transcript, start = sequence.episode.transcript, len(sequence.episode.transcript.tokens)
        try:
            turn = await sequence.episode.generate(request.stop, request.max_tokens)
        except RequestRefused as error:
            raise ApiError(400, str(error)) from error
        except EngineLost as error:
            self._fail(error)
            raise ApiError(400, f"the engine was lost: {error}", code="engine_lost") from error
        finally:
            sequence.is_busy = False
        tokens = transcript.tokens[start:]
        sequence.text += self._conversations.raw_text(tokens, sequence.tokens)
        sequence.tokens += tokens
        return Answer(
            number,
            turn.text.removesuffix(turn.stop or ""),
            turn.finish,
            len(sequence.tokens) - len(tokens),
            tokens,
            transcript.behaviour_logprobs[start:],
            [self._conversations.piece(token) for token in tokens],
            notes=notes,
        )

    def _record_answer(
        self, sequence: _Sequence, position: int, answer: Answer, renderer: Renderer
    ) -> Answer:
        """Record an answer to messages, and return it with its tool calls."""
        raw = self._conversations.raw_text(self._conversations.without_end(answer.tokens))
        calls = read_calls(renderer.parser, raw, f"call_{answer.number}") if renderer.parser else []
        reply = replace(answer, calls=calls)
        sequence.answers.append(AnswerRecord(position, reply_message(reply), raw))
        return reply

    def _check_sampling(self, request: ChatRequest | TextRequest) -> list[str]:
        """Return notes on parameters that do not apply. Raises ApiError where the job refuses them."""
        notes = []
        for name in ("temperature", "top_p"):
            asked, actual = getattr(request, name), getattr(self._episode.sampling, name)
            if asked is None or asked == actual:
                continue
            if self._other is OtherSampling.REFUSE:
                raise ApiError(
                    400,
                    f"{name}: {asked:g} is not that of the job, {actual:g}, on which its training relies: "
                    "leave it out, or set rollout.workflow.agent.otherSampling to Override",
                    name,
                    "unsupported_value",
                )
            notes.append(f"{name}: {actual:g} of the job applies, not {asked:g}")
        if request.seed is not None:
            notes.append("seed: not used; each turn of each sample has a seed of its own")
        return notes

    def _fail(self, error: Exception) -> None:
        if not self.failure.done():
            self.failure.set_exception(error)


def reply_message(answer: Answer) -> dict[str, Any]:
    """Return the message of an answer as a chat template reads it, once the agent sends it back."""
    if not answer.calls:
        return {"role": "assistant", "content": answer.text}
    calls = [
        call | {"function": call["function"] | {"arguments": json.loads(call["function"]["arguments"])}}
        for call in answer.calls
    ]
    return {"role": "assistant", "content": "", "tool_calls": calls}


def _is_cancelled() -> bool:
    """Return True if the current task itself is being cancelled."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
