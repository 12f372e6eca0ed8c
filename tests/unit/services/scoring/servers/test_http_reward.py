"""The contract of services that score samples by HTTP, as its OpenAPI document has it."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web
from jsonschema import Draft202012Validator

from kubealign.spec.sections.reward_servers import HttpReward
from kubealign_services.scoring.functions.errors import RewardRaised
from kubealign_services.scoring.functions.results import (
    MAX_METRICS,
    RESERVED_METRICS,
    InvalidResult,
    RewardResult,
    check_results,
)
from kubealign_services.scoring.servers.contract import ServerSample
from kubealign_services.scoring.servers.endpoint import Endpoint, RewardServerRefused
from kubealign_services.scoring.servers.http_reward import HttpServerReward
from support.reward_server import reward_server

pytestmark = pytest.mark.timeout(60)

CONTRACT = Path(__file__).parents[5] / "docs" / "reward-service.openapi.yaml"
SAMPLES = [ServerSample("p", text, {"answer": "a"}) for text in ("a", "bad", "c")]


async def outcomes(url: str) -> Any:
    async with Endpoint("reward r: http", HttpReward(url=url, retries=0), url, 20.0, 8, {}) as endpoint:
        return await HttpServerReward("r", endpoint).outcomes(SAMPLES)


def conforms(schema: str, value: Any) -> bool:
    """Return True if a value is of a schema of the document."""
    document = yaml.safe_load(CONTRACT.read_text())
    return Draft202012Validator(document | {"$ref": f"#/components/schemas/{schema}"}).is_valid(value)


@pytest.mark.parametrize(
    "result",
    [
        1,
        0.5,
        None,
        {"reward": 1},
        {"reward": None, "metrics": None, "explanation": None},
        {"reward": 1, "metrics": {"a.b-c_1": 1}, "explanation": "x"},
        {"reward": 1, "metrics": {str(i): 1 for i in range(MAX_METRICS)}},
        "1",
        [1],
        {},
        {"metrics": {}},
        {"reward": "1"},
        {"reward": 1, "score": 1},
        {"reward": 1, "explanation": 1},
        {"reward": 1, "metrics": [1]},
        {"reward": 1, "metrics": {"a": "1"}},
        {"reward": 1, "metrics": {"a/b": 1}},
        {"reward": 1, "metrics": {"a" * 64: 1}},
        {"reward": 1, "metrics": {str(i): 1 for i in range(MAX_METRICS + 1)}},
        *({"reward": 1, "metrics": {name: 1}} for name in sorted(RESERVED_METRICS)),
    ],
)
def test_the_document_allows_what_the_code_accepts(result: Any) -> None:
    try:
        check_results([result], 1)
        accepted = True
    except InvalidResult:
        accepted = False
    assert conforms("Result", result) == conforms("Answer", {"results": [result]}) == accepted


async def test_requests_and_results() -> None:
    async def answer(*_: Any) -> web.StreamResponse:
        results = [1, None, {"reward": 0.5, "metrics": {"words": 1}, "explanation": "fair"}]
        return web.json_response({"results": results})

    async with reward_server(answer) as (url, server):
        assert await outcomes(url) == [
            RewardResult(1.0),
            RewardResult(None),
            RewardResult(0.5, {"words": 1.0}, "fair"),
        ]
    assert all(conforms("Request", body) for body in server.bodies)
    assert server.bodies == [
        {
            "reward": "r",
            "samples": [
                {"prompt": "p", "response": text, "columns": {"answer": "a"}} for text in ("a", "bad", "c")
            ],
        }
    ]


async def test_a_sample_that_the_service_refuses_does_not_fail_the_others() -> None:
    async def answer(request: web.Request, body: Any, number: int) -> web.StreamResponse:
        if any(sample["response"] == "bad" for sample in body["samples"]):
            return web.Response(status=400, text="bad sample")
        return web.json_response({"results": [1.0] * len(body["samples"])})

    async with reward_server(answer) as (url, _):
        first, second, third = await outcomes(url)
    assert first == third == RewardResult(1.0)
    assert isinstance(second, RewardRaised) and "answers 400: bad sample" in str(second)


async def test_a_refused_address_is_the_error_of_every_sample() -> None:
    async def answer(*_: Any) -> web.StreamResponse:
        return web.Response(status=404)

    async with reward_server(answer) as (url, server):
        assert all(isinstance(outcome, RewardServerRefused) for outcome in await outcomes(url))
        assert len(server.bodies) == 1


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ([1.0], "the answer is no object with the key 'results'"),
        ({"rewards": [1]}, "the answer is no object with the key 'results'"),
        ({"results": [1.0] * 4}, "the service returned 4 rewards for"),
        ({"results": ["good"]}, r"the service returned 'good' \(str\) for response 0, not a number"),
    ],
)
async def test_other_answers_are_errors(document: Any, message: str) -> None:
    async def answer(*_: Any) -> web.StreamResponse:
        return web.json_response(document)

    async with reward_server(answer) as (url, _):
        for outcome in await outcomes(url):
            with pytest.raises(RewardRaised, match=message):
                raise outcome
