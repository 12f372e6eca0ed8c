"""Rewards of programs that a sandbox service runs, whose answers a test decides."""

from typing import Any

import pytest
from aiohttp import web

from kubealign.spec.sections.rewards import Reward
from kubealign.spec.sections.score_calls import ScoreCalls
from kubealign.spec.sections.validation import ValidationScore
from kubealign_services.runtime.process.failures import PermanentFailure
from kubealign_services.scoring.functions.errors import RewardRaised
from kubealign_services.scoring.functions.results import MAX_EXPLANATION, RewardResult
from kubealign_services.scoring.servers.contract import ServerSample
from kubealign_services.scoring.servers.endpoint import RewardServerRefused
from kubealign_services.scoring.servers.factory import open_server_reward
from support.reward_server import Handler, reward_server
from support.sandbox_service import conforms

pytestmark = pytest.mark.timeout(60)

PASSED, FAILED = {"passed": True, "reason": ""}, {"passed": False, "reason": "AssertionError: assert x"}


def reward(url: str, code: dict[str, Any] | None = None, **server: Any) -> Reward:
    verifier = {"code": {"server": {"url": url, "retries": 0} | server} | (code or {})}
    return Reward.model_validate({"name": "tests", "verifier": verifier})


async def outcomes(entry: ScoreCalls, *samples: tuple[str, dict[str, Any]]) -> list[Any]:
    async with open_server_reward(entry) as server:
        return await server.outcomes([ServerSample("p", response, row) for response, row in samples])


def answering(*verdicts: dict[str, Any], seconds: float = 0.5) -> Handler:
    async def answer(request: web.Request, body: Any, number: int) -> web.StreamResponse:
        assert request.path == "/v1/programs"
        return web.json_response({"verdicts": list(verdicts), "seconds": seconds})

    return answer


async def test_the_program_and_its_tests_are_sent() -> None:
    code = {"prefixColumn": "head", "setupColumn": "setup", "entryPointColumn": "name", "secondsPerTest": 2}
    row = {"tests": "def check(f): pass", "head": "y = 1", "setup": "import math", "name": "f", "other": 1}
    async with reward_server(answering(PASSED)) as (url, server):
        (result,) = await outcomes(reward(f"{url}/", code), ("```\nx = 1\n```", row))
    assert result == RewardResult(
        1.0, {"tests.passed": 1, "tests.total": 1, "seconds": 0.5}, "1 of 1 tests passed"
    )
    (body,) = server.bodies
    assert conforms("Program", body)
    assert body == {
        "kind": "python",
        "program": "x = 1\n",
        "prefix": "y = 1\n",
        "setup": "import math\n",
        "entryPoint": "f",
        "tests": ["def check(f): pass"],
        "limits": {
            "secondsPerTest": 2,
            "secondsPerResponse": 20,
            "memoryMib": 512,
            "outputBytes": 65536,
            "processes": 16,
        },
    }


async def test_cases_are_sent_with_partial_rewards() -> None:
    code = {"kind": "InputOutput", "partial": True}
    cases = [{"input": "1", "output": "1"}, {"input": "2", "output": "4"}]
    async with reward_server(answering(PASSED, FAILED)) as (url, server):
        (result,) = await outcomes(reward(url, code), ("print(input())", {"tests": cases}))
    assert result.reward == 0.5
    assert result.explanation == "1 of 2 tests passed; test 2: AssertionError: assert x"
    assert conforms("Program", server.bodies[0]) and server.bodies[0]["tests"] == cases


async def test_nothing_is_sent_where_nothing_runs() -> None:
    """A row without tests, a response without a program, and rows that cannot be used."""
    row = {"tests": ["assert x"]}
    async with reward_server(answering(PASSED)) as (url, server):
        no_tests, blank, unusable, missing = await outcomes(
            reward(url),
            ("x = 1", {"tests": None}),
            (" \n", row),
            ("x = 1", {"tests": 5}),
            ("x = 1", {"a": 1}),
        )
    assert no_tests == RewardResult(None)
    assert (blank.reward, blank.explanation) == (0.0, "no program in the response")
    assert isinstance(unusable, RewardRaised) and isinstance(missing, RewardRaised)
    assert str(unusable).startswith("reward tests: verifier code: tests is 5; it must be a text")
    assert str(missing) == "reward tests: verifier code: the data has no column 'tests'; there are: a"
    assert server.bodies == []


async def test_a_long_explanation_is_cut() -> None:
    verdict = {"passed": False, "reason": "x" * 2 * MAX_EXPLANATION}
    async with reward_server(answering(verdict)) as (url, _):
        (result,) = await outcomes(reward(url), ("x", {"tests": "assert x"}))
    assert len(result.explanation) == MAX_EXPLANATION


@pytest.mark.parametrize(
    ("status", "error"), [(400, RewardRaised), (403, RewardServerRefused), (503, RewardRaised)]
)
async def test_a_refusal_is_the_error_of_the_sample(status: int, error: type[Exception]) -> None:
    async def refuse(*_: Any) -> web.StreamResponse:
        return web.json_response({"error": "limits.memoryMib: 512: must be at most 256"}, status=status)

    async with reward_server(refuse) as (url, _):
        (outcome,) = await outcomes(reward(url), ("x", {"tests": "assert x"}))
    assert isinstance(outcome, error)
    assert f"answers {status}: limits.memoryMib: 512: must be at most 256" in str(outcome)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"results": [1]}, "the answer is none of the contract: verdicts: is required"),
        ({"verdicts": [], "seconds": 1}, "verdicts: has 0 entries for 1 tests"),
        ({"verdicts": [{"passed": "yes", "reason": ""}], "seconds": 1}, r'verdicts\[0\]\.passed: "yes"'),
    ],
)
async def test_other_answers_are_repeated(document: Any, message: str) -> None:
    async def answer(*_: Any) -> web.StreamResponse:
        return web.json_response(document, headers={"Retry-After": "0"})

    async with reward_server(answer) as (url, server):
        (outcome,) = await outcomes(reward(url, retries=1), ("x", {"tests": "assert x"}))
        assert len(server.bodies) == 2
    with pytest.raises(RewardRaised, match=message):
        raise outcome


async def test_the_token_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    async with reward_server(answering(PASSED)) as (url, server):
        entry = reward(url, tokenVariable="SANDBOX_TOKEN")
        with pytest.raises(PermanentFailure, match=r"reward tests: verifier code: .* SANDBOX_TOKEN"):
            await outcomes(entry)
        monkeypatch.setenv("SANDBOX_TOKEN", "secret")
        await outcomes(entry, ("x", {"tests": "assert x"}))
    assert server.headers[0]["Authorization"] == "Bearer secret"


async def test_a_score_of_a_validation() -> None:
    async with reward_server(answering(PASSED)) as (url, _):
        score = ValidationScore.model_validate({"name": "ok", "verifier": {"code": {"server": {"url": url}}}})
        (result,) = await outcomes(score, ("x", {"tests": "assert x"}))
    assert result.reward == 1.0
