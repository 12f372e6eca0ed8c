"""Translation between the contract and vLLM's server."""

import asyncio
import math
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from kubealign.spec.sections.engines import OpenAIEngineSpec
from kubealign_services.generation.contract import SamplingParameters
from kubealign_services.generation.external.contract import ExternalEngineDied
from kubealign_services.generation.external.openai.connection import ServerError
from kubealign_services.generation.external.openai.engine import OpenAIExternalEngine, server_url
from kubealign_services.generation.external.openai.responses import InvalidAnswer
from kubealign_services.generation.external.openai.vllm_server import (
    completion_request,
    probe_request,
    read_sample,
    read_scores,
    reports_sampled_distribution,
    score_request,
    scored_at_temperature,
    temperature_probe,
)
from kubealign_services.generation.external.weight_files import WeightFiles
from kubealign_services.runtime.process.failures import PermanentFailure
from support.free_address import free_port
from support.http_server import serving

pytestmark = pytest.mark.timeout(60)

SAMPLING = SamplingParameters(
    max_tokens=9, min_tokens=2, temperature=0.5, top_k=4, top_p=0.9, stop=("!",), stop_token_ids=(7,)
)


def test_requests_state_every_setting() -> None:
    body = completion_request("m", [1, 2], SAMPLING, 2**64 - 1, [7, 256])
    assert (body["model"], body["prompt"], body["max_tokens"], body["min_tokens"]) == ("m", [1, 2], 9, 2)
    assert (body["temperature"], body["top_k"], body["top_p"], body["n"]) == (0.5, 4, 0.9, 1)
    assert (body["stop"], body["stop_token_ids"], body["ignore_eos"]) == (["!"], [7, 256], True)
    assert body["include_stop_str_in_output"] and not body["skip_special_tokens"]
    assert body["return_token_ids"] and body["logprobs"] == 0
    assert body["seed"] == 2**63 - 1
    # Without them the server would take the model's generation_config.json.
    assert (body["repetition_penalty"], body["min_p"]) == (1.0, 0.0)
    assert body["presence_penalty"] == body["frequency_penalty"] == 0.0


@given(st.lists(st.integers(0, 9), min_size=2, max_size=6))
def test_scores_belong_to_their_tokens(tokens: list[int]) -> None:
    """The last token, which may not be in the prompt, is the next token's alternative."""
    body = score_request("m", tokens, 1.0)
    assert body["prompt"] == tokens[:-1] and body["logprob_token_ids"] == [tokens[-1]]
    assert (body["max_tokens"], body["temperature"], body["top_k"], body["top_p"]) == (1, 1.0, 0, 1.0)
    prompt = [None, *({str(token): {"logprob": -float(i)}} for i, token in enumerate(tokens[1:-1], 1))]
    after = {"top_logprobs": [{f"token_id:{tokens[-1]}": -100.0, "token_id:999": -1.0}]}
    answer = {"choices": [{"prompt_logprobs": prompt, "logprobs": after}]}
    expected = [-float(i) for i in range(1, len(tokens) - 1)]
    assert read_scores(answer, tokens) == [*expected, -100.0]
    with pytest.raises(InvalidAnswer, match="of a prompt came with"):
        read_scores(answer, [*tokens, 1])


def test_a_score_of_another_token_is_refused() -> None:
    after = {"top_logprobs": [{"token_id:3": -1.0}]}
    answer = {"choices": [{"prompt_logprobs": [None, {"2": {"logprob": -1.0}}], "logprobs": after}]}
    assert read_scores(answer, [1, 2, 3]) == [-1.0, -1.0]
    for tokens, field in (([1, 4, 3], r"\[1\]\.4"), ([1, 2, 4], "top_logprobs.*token_id:4")):
        with pytest.raises(InvalidAnswer, match=field):
            read_scores(answer, tokens)


def completion(**fields: Any) -> dict[str, Any]:
    choice = {"token_ids": [3, 4], "logprobs": {"token_logprobs": [-1.0, -2.0]}, "finish_reason": "stop"}
    return {"choices": [choice | fields]}


def test_a_sample_has_tokens_and_their_log_probabilities() -> None:
    sample = read_sample(completion(), 10, 5)
    assert (sample.tokens, sample.logprobs) == ([3, 4], [-1.0, -2.0])
    for fields, reason in (
        ({"token_ids": None}, r"no choices\[0\]\.token_ids"),
        ({"token_ids": [3, 10]}, "holds the token 10"),
        ({"logprobs": None}, r"no choices\[0\]\.logprobs"),
        ({"logprobs": {"token_logprobs": [-1.0]}}, "2 tokens came with 1"),
        ({"finish_reason": "length"}, "cut at 2 of 5"),
    ):
        with pytest.raises(InvalidAnswer, match=reason):
            read_sample(completion(**fields), 10, 5)


def test_prompts_and_the_last_token_are_scored_at_the_temperature() -> None:
    body = score_request("m", [1, 2, 3], 0.6)
    assert body["temperature"] == 0.6 and body["vllm_xargs"] == {"kubealign_scoring_temperature": 0.6}


@given(st.lists(st.floats(-20, 0), min_size=2, max_size=6))
def test_the_probe_tells_whether_prompts_are_scored_at_a_temperature(logits: list[float]) -> None:
    def scores(temperature: float) -> dict[str, Any]:
        """Logits less a constant, as the log-probabilities are."""
        entries = {str(i): {"logprob": (logit - 1) / temperature} for i, logit in enumerate(logits)}
        return {"choices": [{"prompt_logprobs": [None, entries]}]}

    assert temperature_probe("m", 2.0)["vllm_xargs"] == {"kubealign_scoring_temperature": 2.0}
    spread = max(logits) - min(logits)
    if spread > 1e-6:
        assert scored_at_temperature(scores(1), scores(2))
    assert not scored_at_temperature(scores(1), scores(1))


@given(st.floats(-30, 30), st.floats(-30, 30))
def test_the_probe_tells_the_log_probabilities_of_the_sampled_distribution(one: float, two: float) -> None:
    """The logits are one and two, and 0 for the other 98 tokens, at temperature 2."""
    assert probe_request("m")["temperature"] == 2.0 and len(probe_request("m")["allowed_token_ids"]) == 2

    def reports(first: float, second: float) -> bool:
        top = {"token_id:0": first, "token_id:1": second}
        return reports_sampled_distribution({"choices": [{"logprobs": {"top_logprobs": [top]}}]})

    allowed = math.log(math.exp(one / 2) + math.exp(two / 2))
    assert reports(one / 2 - allowed, two / 2 - allowed)
    everything = math.log(math.exp(one) + math.exp(two) + 98)
    mass = math.exp(one - everything) + math.exp(two - everything)
    assert reports(one - everything, two - everything) == (mass > 0.99)


def test_each_worker_has_a_server_of_its_own() -> None:
    spec = OpenAIEngineSpec(url="http://vllm-{worker}.vllm:80{worker}0")
    assert server_url(spec, 3) == "http://vllm-3.vllm:8030"


def answering(**answers: Any) -> web.Application:
    """Return an application with an answer of POST requests to /v1/completions and /collective_rpc.

    Args:
        answers: JSON by `completions` and `rpc`; a number: an error of this status.
    """

    def handler(answer: Any) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def handle(request: web.Request) -> web.Response:
            if isinstance(answer, int):
                return web.json_response({"error": {"message": "sorry"}}, status=answer)
            return web.json_response(answer)

        return handle

    app = web.Application()
    listing = {"data": [{"id": "m", "max_model_len": 96}]}
    app.router.add_get("/v1/models", handler(answers.get("models", listing)))
    app.router.add_get("/health", handler({}))
    app.router.add_get("/weight_info", handler(answers.get("weights", {"weight_version": "default"})))
    app.router.add_post("/v1/completions", handler(answers.get("completions", PROBED)))
    app.router.add_post("/collective_rpc", handler(answers.get("rpc", {"results": [None]})))
    return app


PROBED = completion(
    token_ids=[1],
    logprobs={
        "token_logprobs": [-0.6931],
        "top_logprobs": [{"token_id:0": -0.6931, "token_id:1": -0.6931}],
    },
    prompt_logprobs=[None, {"0": {"logprob": -1.0}, "1": {"logprob": -2.0}}],
    finish_reason="length",
)
PLAIN_OPENAI = {"choices": [{"index": 0, "text": "!", "logprobs": None, "finish_reason": "length"}]}


async def create(url: str, tmp_path: Path) -> OpenAIExternalEngine:
    spec = OpenAIEngineSpec(url=url, outage_seconds=0.5, start_timeout_seconds=0.5)
    return await OpenAIExternalEngine.create(spec, 0, 10, WeightFiles(tmp_path))


async def test_a_usable_server_is_accepted(tmp_path: Path) -> None:
    async with serving(answering()) as url:
        engine = await create(url, tmp_path)
        await engine.close()
    # The answer is the same whatever the temperature.
    assert not engine.scores_at_any_temperature
    assert engine.context == 96 and not await asyncio.to_thread(lambda: list(tmp_path.iterdir()))


@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        ({"completions": PLAIN_OPENAI}, r"token ids and log-probabilities .*no choices\[0\]\.token_ids"),
        ({"completions": 404}, "/v1/completions with 404: sorry"),
        ({"completions": 400}, "/v1/completions with 400: sorry"),
        ({"models": {"data": [{"id": "m"}]}}, "no max_model_len"),
        ({"models": {"data": []}}, r"0 models \(none\)"),
        ({"rpc": 404}, r"cannot load the file .*/collective_rpc with 404: sorry.*VLLM_SERVER_DEV_MODE=1"),
        ({"rpc": 500}, r"/collective_rpc with 500: sorry.*weightFolder"),
        ({"weights": 404}, "/weight_info with 404"),
        ({"weights": {}}, "no weight_version"),
    ],
)
async def test_a_server_that_lacks_an_ability_is_refused(
    answers: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    async with serving(answering(**answers)) as url:
        with pytest.raises(PermanentFailure, match=reason):
            await create(url, tmp_path)
    assert not await asyncio.to_thread(lambda: list(tmp_path.iterdir()))


async def test_a_server_that_does_not_answer_is_named(tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    reason = rf"{url} did not answer /v1/models for 0\.5 s: .*openai\.url\)\. In a cluster rollout\.egress"
    with pytest.raises(ExternalEngineDied, match=reason):
        await create(url, tmp_path)
    assert not await asyncio.to_thread(lambda: list(tmp_path.iterdir()))


async def test_blocks_in_use_delay_the_end_of_a_refit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cancelled requests may still have blocks when the weights are loaded."""
    module = "kubealign_services.generation.external.openai.access"
    answers, label = iter([False, False, True]), {"weight_version": "default"}

    async def reset(request: web.Request) -> web.Response:
        return web.json_response({"success": next(answers, False)})

    async def set_label(request: web.Request) -> web.Response:
        label["weight_version"] = (await request.json())["new_version"]
        return web.json_response({"success": True})

    app = answering(weights=label)
    app.router.add_post("/reset_prefix_cache", reset)
    app.router.add_post("/update_weight_version", set_label)
    async with serving(app) as url:
        engine = await create(url, tmp_path)
        try:
            await engine.load_weights(tmp_path / "weights.safetensors")
            assert label["weight_version"].endswith("-1-incomplete")
            await engine.finish_weight_update()
            assert not any(answers) and label["weight_version"].endswith("-1")
            monkeypatch.setattr(f"{module}.FREE_SECONDS", 0.2)
            await engine.load_weights(tmp_path / "weights.safetensors")
            with pytest.raises(ServerError, match=r"requests of others used the cache for 0\.2 s"):
                await engine.finish_weight_update()
            assert label["weight_version"].endswith("-2-incomplete")
        finally:
            await engine.close()
