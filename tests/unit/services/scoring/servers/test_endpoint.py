"""Requests to a reward server that fails, is busy, hangs or refuses them."""

import asyncio
import datetime
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from kubealign.spec.sections.reward_servers import HttpReward
from kubealign_services.runtime.process.failures import PermanentFailure
from kubealign_services.scoring.functions.errors import RewardError, RewardHung, RewardRaised
from kubealign_services.scoring.servers import endpoint as endpoint_module
from kubealign_services.scoring.servers.endpoint import (
    Endpoint,
    RewardServerRefused,
    UnusableAnswer,
    read_retry_after,
)
from support.free_address import free_port
from support.reward_server import hang, reward_server

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(autouse=True)
def short_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint_module, "FIRST_DELAY", 0.001)


def make(url: str, timeout: float = 20.0, variables: dict[str, str] | None = None, **fields: Any) -> Endpoint:
    spec = HttpReward(url=url, **fields)
    return Endpoint("reward r: http", spec, url, timeout, 8, variables or {})


async def posted(endpoint: Endpoint, read: Any = lambda answer: answer) -> Any:
    async with endpoint:
        return await endpoint.post({"n": 1}, read)


async def test_an_answer_after_failures() -> None:
    async def answer(request: web.Request, body: Any, number: int) -> web.StreamResponse:
        if number < 3:
            return web.Response(status=[500, 429, 408][number], text="later")
        return web.json_response({"body": body})

    async with reward_server(answer) as (url, server):
        assert await posted(make(url)) == {"body": {"n": 1}}
        assert len(server.bodies) == 4


@pytest.mark.parametrize(
    ("status", "error", "requests"),
    [
        (503, RewardRaised, 3),
        (429, RewardRaised, 3),
        (400, RewardRaised, 1),
        (422, RewardRaised, 1),
        (302, RewardServerRefused, 1),
        (401, RewardServerRefused, 1),
        (403, RewardServerRefused, 1),
        (404, RewardServerRefused, 1),
    ],
)
async def test_errors_of_a_server(status: int, error: type[RewardError], requests: int) -> None:
    async def answer(*_: Any) -> web.StreamResponse:
        return web.Response(status=status, text="no\nway", headers={"Location": "/elsewhere"})

    async with reward_server(answer) as (url, server):
        with pytest.raises(error, match=rf"reward r: http: {url} answers {status}: no way") as caught:
            await posted(make(url, retries=2))
        assert len(server.bodies) == requests
    assert caught.value.is_of_sample == (error is RewardRaised)
    assert caught.value.permanent == (error is RewardServerRefused)


async def test_a_server_that_does_not_answer() -> None:
    async with reward_server(hang) as (url, server):
        with pytest.raises(RewardHung, match=r"did not answer within 0\.05 s"):
            await posted(make(url, timeout=0.05, retries=1))
        assert len(server.bodies) == 2


async def test_a_server_that_is_not_there() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(RewardRaised, match=f"{url}: ClientConnectorError"):
        await posted(make(url, retries=1))


async def test_answers_that_cannot_be_used_are_requested_again() -> None:
    async def answer(request: web.Request, body: Any, number: int) -> web.StreamResponse:
        return web.Response(text=["<html>", "[1]", "[2]"][number])

    def read(value: Any) -> Any:
        if value == [1]:
            raise UnusableAnswer("one is no answer")
        return value

    async with reward_server(answer) as (url, _):
        assert await posted(make(url), read) == [2]
    async with reward_server(answer) as (url, _):
        with pytest.raises(RewardRaised, match=f"{url}: one is no answer"):
            await posted(make(url, retries=1), read)
    async with reward_server(answer) as (url, _):
        with pytest.raises(RewardRaised, match="answers no JSON: <html>"):
            await posted(make(url, retries=0), read)


async def test_an_endless_answer_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint_module, "_MAX_ANSWER_BYTES", 100)

    async def answer(*_: Any) -> web.StreamResponse:
        return web.Response(text="x" * 101)

    async with reward_server(answer) as (url, _):
        with pytest.raises(RewardRaised, match="answers more than 100 bytes"):
            await posted(make(url, retries=0))


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("7.5", 7.5),
        ("-1", 0.0),
        ("Sat, 28 Nov 2026 12:01:00 GMT", 60.0),
        ("Sat, 28 Nov 2026 11:00:00 GMT", 0.0),
        ("soon", None),
        ("", None),
        ("nan", None),
        ("inf", None),
    ],
)
def test_a_busy_server_says_when_to_come_back(text: str, seconds: float | None) -> None:
    now = datetime.datetime(2026, 11, 28, 12, tzinfo=datetime.UTC)
    assert read_retry_after(text, now) == seconds


async def test_the_pause_is_the_one_that_a_server_asks_for(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")

    async def answer(request: web.Request, body: Any, number: int) -> web.StreamResponse:
        if number == 0:
            return web.Response(status=429, headers={"Retry-After": "0.2"})
        return web.json_response(1)

    async with reward_server(answer) as (url, _):
        assert await posted(make(url)) == 1
    assert "answers 429: an empty answer; the request is repeated in 0.2 s" in caplog.text


async def test_a_server_that_fails_again_and_again_is_tried_by_one_call_at_a_time() -> None:
    failing = True

    async def answer(request: web.Request, body: Any, number: int) -> web.StreamResponse:
        if failing:
            return web.Response(status=500)
        await asyncio.sleep(0.001)
        return web.json_response(number)

    async with reward_server(answer) as (url, server), make(url, retries=0) as endpoint:
        outcomes = [await _outcome(endpoint) for _ in range(5)]
        assert all(isinstance(outcome, RewardRaised) for outcome in outcomes)
        server.most_running = 0
        calls = [asyncio.create_task(_outcome(endpoint)) for _ in range(8)]
        async with asyncio.timeout(30):
            while not server.running and len(server.bodies) == 5:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            assert server.most_running == 1
            failing = False
            results = await asyncio.gather(*calls)
        # The call that tried it first failed; the server was there again for all others.
        assert sum(isinstance(result, RewardRaised) for result in results) == 1
        assert sum(isinstance(result, int) for result in results) == 7


@pytest.mark.parametrize(
    ("statuses", "waits"),
    [
        ([500] * 5, True),
        # A success ends the failures in a row.
        ([500] * 4 + [200] + [500] * 4, False),
        # A busy server, one that refuses a request, and one that answers nonsense have not failed.
        ([429] * 6, False),
        ([400] * 6, False),
        ([500] * 4 + [400] + [500] * 4, False),
    ],
)
async def test_failures_in_a_row_have_calls_wait(statuses: list[int], waits: bool) -> None:
    async def answer(request: web.Request, body: Any, number: int) -> web.StreamResponse:
        return web.json_response(1, status=statuses[number])

    async with reward_server(answer) as (url, _), make(url, retries=0) as endpoint:
        for _ in statuses:
            await _outcome(endpoint)
        assert endpoint._breaker.is_open == waits


async def _outcome(endpoint: Endpoint) -> Any:
    try:
        return await endpoint.post({}, lambda answer: answer)
    except RewardError as error:
        return error


async def test_a_token_is_sent_and_one_that_is_missing_is_named() -> None:
    async def answer(*_: Any) -> web.StreamResponse:
        return web.json_response(1)

    async with reward_server(answer) as (url, server):
        await posted(make(url, variables={"KEY": "secret"}, token_variable="KEY"))
        await posted(make(url))
    assert [headers.get("Authorization") for headers in server.headers] == ["Bearer secret", None]
    for variables in ({}, {"KEY": ""}):
        with pytest.raises(PermanentFailure, match=r"variable KEY \(tokenVariable\) is not set"):
            make("http://x", variables=variables, token_variable="KEY")


def test_certificates_that_are_missing_are_named(tmp_path: Path) -> None:
    with pytest.raises(PermanentFailure, match=r"has neither ca\.crt nor tls\.crt"):
        make("https://x", tls_folder=str(tmp_path))
    (tmp_path / "tls.crt").write_text("nonsense")
    with pytest.raises(PermanentFailure, match=rf"the certificates of {tmp_path} \(tlsFolder\)"):
        make("https://x", tls_folder=str(tmp_path))
