"""Rewards of a language model behind an OpenAI-compatible API."""

import asyncio
import hashlib
import json
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from aiolimiter import AsyncLimiter

from kubealign.spec.sections.reward_servers import JudgeReward, JudgeScale
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
#: Verdict on a question: value, explanation, and tokens.
_Verdict = tuple[T, str, int]


class JudgeServerReward:
    """A ServerReward by a judge. Close it when no call is in progress.

    Metrics of each response: judge.tokens, of its questions and answers; judge.cached, the share of answers
    that were there already.
    """

    def __init__(self, spec: JudgeReward, endpoint: Endpoint) -> None:
        self._spec = spec
        self._endpoint = endpoint
        self._cache: AnswerCache[_Verdict[Any]] = AnswerCache(spec.cache_entries)
        self._requests = _limiter(spec.requests_per_minute)
        self._tokens = _limiter(spec.tokens_per_minute)

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
            "judge.tokens": float(sum(tokens for (_, _, tokens), cached in answers if not cached)),
            "judge.cached": sum(cached for _, cached in answers) / len(answers),
        }
        if self._spec.task.pairwise is not None:
            return _pairwise_result(verdicts, metrics)
        return _scored_result(verdicts[0], self._spec.task.value.scale, metrics)

    async def _ask(self, question: str, read: Callable[[Any], _Verdict[Any]]) -> tuple[_Verdict[Any], bool]:
        """Return the verdict on a question, and whether it was there already."""
        request = chat_request(self._spec, question)
        key = hashlib.sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()

        async def ask() -> _Verdict[Any]:
            if self._requests is not None:
                await self._requests.acquire()
            if self._tokens is not None:
                estimate = estimate_tokens(self._spec, question)
                await self._tokens.acquire(min(estimate, self._tokens.max_rate))
            return await self._endpoint.post(request, read)

        return await self._cache.get(key, ask)

    def _read_score(self, answer: Any) -> _Verdict[float]:
        chat = read_chat_answer(answer)
        return (*read_score(chat.text, self._spec.task.value.scale), chat.tokens)

    def _read_winner(self, answer: Any) -> _Verdict[Winner]:
        chat = read_chat_answer(answer)
        return (*read_winner(chat.text), chat.tokens)


def _limiter(per_minute: int | None) -> AsyncLimiter | None:
    return None if per_minute is None else AsyncLimiter(per_minute, _MINUTE)


def _scored_result(verdict: _Verdict[float], scale: JudgeScale, metrics: dict[str, float]) -> RewardResult:
    score, explanation, _ = verdict
    reward = (score - scale.lowest) / (scale.highest - scale.lowest)
    return RewardResult(reward, metrics, f"score {score:g}: {explanation}")


def _pairwise_result(verdicts: Sequence[_Verdict[Winner]], metrics: dict[str, float]) -> RewardResult:
    """Return the share of the two orders that the response has won, as the first and as the second one."""
    shares = [
        0.5 if winner is Winner.TIE else float(winner is own)
        for own, (winner, _, _) in zip((Winner.FIRST, Winner.SECOND), verdicts, strict=True)
    ]
    words = {0.0: "lost", 0.5: "tied", 1.0: "won"}
    explanation = "\n".join(
        f"{words[share]} as the {order} response: {text}"
        for share, order, (_, text, _) in zip(shares, ("first", "second"), verdicts, strict=True)
    )
    return RewardResult(sum(shares) / 2, metrics, explanation)
