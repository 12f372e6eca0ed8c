"""Rewards of a language model behind an OpenAI-compatible API."""

import asyncio
import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from aiolimiter import AsyncLimiter

from kubealign.spec.sections.reward_servers import JudgeQuestions, JudgeReward, JudgeScale
from kubealign_services.scoring.functions.batching import Outcome
from kubealign_services.scoring.functions.errors import RewardError
from kubealign_services.scoring.functions.results import RewardResult
from kubealign_services.scoring.servers.contract import ServerSample
from kubealign_services.scoring.servers.endpoint import Endpoint
from kubealign_services.scoring.servers.judge.answer_cache import AnswerCache
from kubealign_services.scoring.servers.judge.answers import Winner, read_chat_answer, read_score, read_winner
from kubealign_services.scoring.servers.judge.questions import build_questions, chat_request, estimate_tokens

T = TypeVar("T")

CHAT_PATH = "/chat/completions"
_MINUTE = 60.0


@dataclass(frozen=True)
class _Verdict(Generic[T]):
    """Verdict on a question. version: that of the policy's weights; None: another model gave it."""

    value: T
    explanation: str
    tokens: int
    version: int | None


class ChatModel(Protocol):
    """Model that answers questions."""

    def request(self, question: str) -> dict[str, Any]:
        """Return the request with a question, as JSON. Equal requests may share an answer."""

    async def answer(self, request: dict[str, Any], read: Callable[[Any], T]) -> T:
        """Return what `read` makes of the answer, in the form of /chat/completions. Raises RewardError.

        Args:
            read: Raises UnusableAnswer for an answer to be requested again.
        """


class ServerModel:
    """A ChatModel of another server, within its limits."""

    def __init__(self, spec: JudgeReward, endpoint: Endpoint) -> None:
        self._spec = spec
        self._endpoint = endpoint
        self._requests = _limiter(spec.requests_per_minute)
        self._tokens = _limiter(spec.tokens_per_minute)

    def request(self, question: str) -> dict[str, Any]:
        return chat_request(self._spec, question)

    async def answer(self, request: dict[str, Any], read: Callable[[Any], T]) -> T:
        if self._requests is not None:
            await self._requests.acquire()
        if self._tokens is not None:
            estimate = estimate_tokens(self._spec, request["messages"][0]["content"])
            await self._tokens.acquire(min(estimate, self._tokens.max_rate))
        return await self._endpoint.post(request, read)


class JudgedReward:
    """A ServerReward by a judge. Close it when no call is in progress.

    Metrics of each response: judge.tokens, of its questions and answers; judge.cached, the share of answers
    that were there already; judge.version, the least version of the policy's weights that gave an answer,
    where it is the judge.
    """

    def __init__(self, spec: JudgeQuestions, model: ChatModel) -> None:
        self._spec = spec
        self._model = model
        self._cache: AnswerCache[_Verdict[Any]] = AnswerCache(spec.cache_entries)

    async def close(self) -> None:
        await self._cache.close()

    async def outcomes(self, samples: Sequence[ServerSample]) -> list[Outcome]:
        return list(await asyncio.gather(*map(self._outcome, samples)))

    async def _outcome(self, sample: ServerSample) -> Outcome:
        questions = build_questions(self._spec, sample)
        if not questions:
            return RewardResult(None)
        read = self._read_winner if self._spec.task.pairwise is not None else self._read_score
        try:
            # A failure of one does not cancel the other, whose answer the cache keeps.
            answers = await asyncio.gather(*(self._ask(question, read) for question in questions))
        except RewardError as error:
            return error
        verdicts = [verdict for verdict, _ in answers]
        metrics = {
            "judge.tokens": float(sum(verdict.tokens for verdict, cached in answers if not cached)),
            "judge.cached": sum(cached for _, cached in answers) / len(answers),
        }
        versions = [verdict.version for verdict in verdicts if verdict.version is not None]
        if versions:
            metrics["judge.version"] = float(min(versions))
        if self._spec.task.pairwise is not None:
            return _pairwise_result(verdicts, metrics)
        return _scored_result(verdicts[0], self._spec.task.value.scale, metrics)

    async def _ask(self, question: str, read: Callable[[Any], _Verdict[Any]]) -> tuple[_Verdict[Any], bool]:
        """Return the verdict on a question, and whether it was there already."""
        request = self._model.request(question)
        key = hashlib.sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()
        return await self._cache.get(key, lambda: self._model.answer(request, read))

    def _read_score(self, answer: Any) -> _Verdict[float]:
        chat = read_chat_answer(answer)
        score, explanation = read_score(chat.text, self._spec.task.value.scale)
        return _Verdict(score, explanation, chat.tokens, chat.version)

    def _read_winner(self, answer: Any) -> _Verdict[Winner]:
        chat = read_chat_answer(answer)
        return _Verdict(*read_winner(chat.text), chat.tokens, chat.version)


def _limiter(per_minute: int | None) -> AsyncLimiter | None:
    return None if per_minute is None else AsyncLimiter(per_minute, _MINUTE)


def _scored_result(verdict: _Verdict[float], scale: JudgeScale, metrics: dict[str, float]) -> RewardResult:
    reward = (verdict.value - scale.lowest) / (scale.highest - scale.lowest)
    return RewardResult(reward, metrics, f"score {verdict.value:g}: {verdict.explanation}")


def _pairwise_result(verdicts: Sequence[_Verdict[Winner]], metrics: dict[str, float]) -> RewardResult:
    """Return the share of the two orders that the response has won, as the first and as the second one."""
    shares = [
        0.5 if verdict.value is Winner.TIE else float(verdict.value is own)
        for own, verdict in zip((Winner.FIRST, Winner.SECOND), verdicts, strict=True)
    ]
    words = {0.0: "lost", 0.5: "tied", 1.0: "won"}
    explanation = "\n".join(
        f"{words[share]} as the {order} response: {verdict.explanation}"
        for share, order, verdict in zip(shares, ("first", "second"), verdicts, strict=True)
    )
    return RewardResult(sum(shares) / 2, metrics, explanation)
