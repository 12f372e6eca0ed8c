"""Rewards of a judge that answers by HTTP."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from aiohttp import web

from kubealign.spec.sections.rewards import Reward
from kubealign_services.scoring.functions.errors import RewardHung, RewardRaised
from kubealign_services.scoring.functions.results import RewardResult
from kubealign_services.scoring.servers import endpoint as endpoint_module
from kubealign_services.scoring.servers.contract import ServerSample
from kubealign_services.scoring.servers.factory import open_server_reward
from support.reward_server import chat_answer, hang, reward_server

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(autouse=True)
def short_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint_module, "FIRST_DELAY", 0.001)


def reward(url: str, task: dict[str, Any], timeout: float = 20.0, **fields: Any) -> Reward:
    judge = {"url": f"{url}/v1/", "model": "m", "task": task} | fields
    return Reward.model_validate({"name": "quality", "judge": judge, "timeoutSeconds": timeout})


async def judged(spec: Reward, *samples: ServerSample) -> list[Any]:
    async with open_server_reward(spec) as server:
        return list(await server.outcomes(samples))


def saying(answer: Callable[[str], Any]) -> Any:
    """Return a handler that answers a question with the JSON of `answer(question)`."""

    async def handle(request: web.Request, body: Any, number: int) -> web.StreamResponse:
        assert request.path == "/v1/chat/completions"
        return chat_answer(json.dumps(answer(body["messages"][0]["content"])))

    return handle


def sample(response: str, **columns: Any) -> ServerSample:
    return ServerSample("p", response, columns)


async def test_a_score_is_a_share_of_the_scale() -> None:
    def score(question: str) -> dict[str, Any]:
        return {"score": 10 if "good" in question else 2.5, "explanation": "because"}

    async with reward_server(saying(score)) as (url, server):
        good, poor, again = await judged(
            reward(url, {"pointwise": {"rubric": "r", "scale": {"lowest": 0, "highest": 10}}}),
            sample("good"),
            sample("poor"),
            sample("good"),
        )
        assert len(server.bodies) == 2
    assert good == RewardResult(1.0, {"judge.tokens": 10, "judge.cached": 0}, "score 10: because")
    assert poor == RewardResult(0.25, {"judge.tokens": 10, "judge.cached": 0}, "score 2.5: because")
    assert again == RewardResult(1.0, {"judge.tokens": 0, "judge.cached": 1}, "score 10: because")


async def test_a_reference_that_a_row_lacks_has_no_reward() -> None:
    async with reward_server(saying(lambda _: {"score": 10})) as (url, server):
        results = await judged(
            reward(url, {"reference": {}}), sample("a", answer=None), sample("a", answer=1)
        )
        assert [result.reward for result in results] == [None, 1.0]
        assert len(server.bodies) == 1


@pytest.mark.parametrize(
    ("winners", "share"),
    [(("A", "B"), 1.0), (("B", "A"), 0.0), (("A", "A"), 0.5), (("A", "tie"), 0.75), (("tie", "tie"), 0.5)],
)
async def test_a_comparison_counts_both_orders(winners: tuple[str, str], share: float) -> None:
    def winner(question: str) -> dict[str, Any]:
        order = 0 if question.index("mine") < question.index("theirs") else 1
        return {"winner": winners[order], "explanation": f"order {order}"}

    async with reward_server(saying(winner)) as (url, _):
        [result] = await judged(
            reward(url, {"pairwise": {"baselineColumn": "old"}}), sample("mine", old="theirs")
        )
    assert (result.reward, result.metrics) == (share, {"judge.tokens": 20, "judge.cached": 0})
    assert "as the first response: order 0" in result.explanation
    assert "as the second response: order 1" in result.explanation


async def test_nonsense_is_asked_again_and_then_an_error_of_the_sample() -> None:
    async def answer(request: web.Request, body: Any, number: int) -> web.StreamResponse:
        if "always" in body["messages"][0]["content"]:
            return chat_answer("What a nice response!")
        return chat_answer("Hm." if number < 2 else '{"score": 1}')

    async with reward_server(answer) as (url, _):
        [once] = await judged(reward(url, {"pointwise": {}}), sample("once"))
        [always] = await judged(reward(url, {"pointwise": {}}, retries=1), sample("always"))
    assert once.reward == 0.0
    assert isinstance(always, RewardRaised) and always.is_of_sample
    assert "the judge gives no score: 'What a nice response!'" in str(always)


async def test_a_judge_that_hangs_costs_a_sample() -> None:
    async with reward_server(hang) as (url, _):
        [outcome] = await judged(reward(url, {"pointwise": {}}, timeout=0.05, retries=0), sample("a"))
    assert isinstance(outcome, RewardHung)


async def answered(spec: Reward, samples: int) -> int:
    """Return how many of some calls at the same time end within two seconds; cancel the others."""
    async with open_server_reward(spec) as judge:
        calls = [asyncio.create_task(judge.outcomes([sample(str(i))])) for i in range(samples)]
        done, waiting = await asyncio.wait(calls, timeout=2)
        for call in waiting:
            call.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        return len(done)


async def test_requests_of_a_minute_are_limited() -> None:
    """Check that those beyond the limit wait; a minute's worth is allowed at once."""
    async with reward_server(saying(lambda _: {"score": 1})) as (url, server):
        assert await answered(reward(url, {"pointwise": {}}, requestsPerMinute=3), 5) == 3
        assert len(server.bodies) == 3


async def test_tokens_of_a_minute_are_limited() -> None:
    async with reward_server(saying(lambda _: {"score": 1})) as (url, server):
        # Each request is assumed to take all tokens of a minute.
        spec = reward(url, {"pointwise": {}}, tokensPerMinute=500, maxTokens=1000)
        assert await answered(spec, 2) == 1
        assert len(server.bodies) == 1
