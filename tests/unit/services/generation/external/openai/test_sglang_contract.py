"""The engine contract over SGLang's adapter and a stand-in for its server; SGLang itself cannot run here."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import ClassVar

import pytest
import pytest_asyncio
import torch

from kubealign.spec.sections.engines import InferenceServer, OpenAIEngineSpec
from kubealign.spec.sections.precision import Precision
from kubealign.spec.sections.training import Lora
from kubealign_services.generation.contract import EngineLost, RequestRefused, SamplingParameters
from kubealign_services.generation.external.contract import ExternalEngineDied
from kubealign_services.generation.external.openai.connection import KEY_VARIABLE
from kubealign_services.generation.external.openai.responses import InvalidAnswer
from kubealign_services.generation.external.openai.sglang_server import (
    generate_request,
    read_sample,
    read_scores,
)
from kubealign_services.generation.external.samples import is_truncated
from kubealign_services.runtime.process.failures import PermanentFailure
from support.engine_contract.every_engine import EngineContract
from support.engine_contract.generation import (
    CAPACITY,
    MANY_KINDS,
    SECONDS,
    Subject,
    generated,
    group,
    refitted,
)
from support.engine_contract.tiny_model import write_model
from support.external_stage import Stage, open_stage
from support.fake_sglang import FakeSglang
from support.http_server import serving

pytestmark = pytest.mark.timeout(120)

KEY = "a key of tests"


def engine_spec(url: str, **fields: object) -> OpenAIEngineSpec:
    return OpenAIEngineSpec.model_validate(
        {"url": url, "server": "Sglang", "precision": "Float32", "maxSequences": CAPACITY, "outageSeconds": 2}
        | fields
    )


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, KEY)


@pytest.fixture
def server() -> FakeSglang:
    return FakeSglang(KEY)


@pytest_asyncio.fixture
async def stage(server: FakeSglang, tmp_path: Path) -> AsyncIterator[Stage]:
    async with (
        serving(server.application) as url,
        open_stage(engine_spec(url), Lora(), write_model(tmp_path / "model"), tmp_path / "memory") as running,
    ):
        yield running


@pytest.fixture
def subject(stage: Stage) -> Subject:
    return stage.subject


def test_the_spec_has_the_kind_and_the_precision() -> None:
    spec = engine_spec("http://sglang:30000")
    assert (spec.server, spec.precision) == (InferenceServer.SGLANG, Precision.FLOAT32)


class TestSglang(EngineContract):
    #: All kinds of sampling whose log-probabilities SGLang reports.
    kinds: ClassVar = [request for request in MANY_KINDS if not is_truncated(request.sampling)]

    async def test_leaving_early_frees_the_slots(self, subject: Subject) -> None:
        await refitted(subject, 1)
        many = group("left", *range(CAPACITY), max_tokens=1)
        for _ in range(3):
            long = asyncio.create_task(
                generated(subject.generator, group("left", *range(CAPACITY), max_tokens=90))
            )
            await asyncio.sleep(0.02)
            long.cancel()
            await asyncio.gather(long, return_exceptions=True)
            self.check(subject, await generated(subject.generator, many), 1, many)
        await self.idle(subject)


async def test_sampling_without_its_log_probabilities_is_refused(subject: Subject) -> None:
    await refitted(subject, 1)
    for sampling in ({"top_k": 3}, {"top_p": 0.5}, {"min_tokens": 2}):
        with pytest.raises(RequestRefused, match="before topK, topP and minTokens are applied"):
            await generated(subject.generator, group("cut", 1, **sampling))


async def test_cached_prefixes_are_dropped_once_no_request_runs(server: FakeSglang, subject: Subject) -> None:
    await refitted(subject, 1)
    await generated(subject.generator, group("known", 1))
    assert server.cached
    server.refused_flushes = 3
    await refitted(subject, 2)
    assert not server.cached and not server.refused_flushes


async def test_weights_that_a_restart_has_lost_are_noticed(server: FakeSglang, stage: Stage) -> None:
    await refitted(stage.subject, 1)
    server.restart()
    async with asyncio.timeout(SECONDS):
        with pytest.raises(EngineLost, match=r"has lost the weights .* it was restarted"):
            await generated(stage.subject.generator, group("lost", 1))
        with pytest.raises(ExternalEngineDied, match="has lost the weights"):
            await stage.running


async def test_weights_that_the_server_refuses_leave_no_folder(
    server: FakeSglang, stage: Stage, tmp_path: Path
) -> None:
    await refitted(stage.subject, 1)
    server.model.lm_head = torch.nn.Linear(3, 3)
    with pytest.raises(RuntimeError, match=r"/update_weights_from_disk with 400: .*lm_head"):
        await refitted(stage.subject, 2)
    assert len(server.loads) == 2 and not await asyncio.to_thread(Path(server.loads[-1]).exists)


@pytest.mark.parametrize(
    ("key_of_worker", "model", "reason"),
    [
        ("other", None, KEY_VARIABLE),
        (KEY, "other", "is 'other', which the server does not have; it has policy"),
    ],
)
async def test_unusable_servers_are_refused(
    key_of_worker: str, model: str | None, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEY_VARIABLE, key_of_worker)
    folder = write_model(tmp_path / "model")
    async with serving(FakeSglang(KEY).application) as url:
        with pytest.raises(PermanentFailure, match=reason):
            async with open_stage(engine_spec(url, model=model), Lora(), folder, tmp_path / "memory"):
                raise AssertionError("it was opened")


def test_requests_state_every_setting() -> None:
    sampling = SamplingParameters(9, 0, 0.5, stop=("!",), stop_token_ids=(7,))
    body = generate_request([1, 2], sampling, 2**64 - 1, [7, 256])
    settings = body["sampling_params"]
    assert body["input_ids"] == [1, 2] and body["return_logprob"]
    assert (settings["max_new_tokens"], settings["temperature"], settings["top_k"]) == (9, 0.5, -1)
    assert settings["stop"] == ["!"] and settings["stop_token_ids"] == [7, 256]
    # It would switch the stop tokens off.
    assert settings["ignore_eos"] is False
    assert settings["no_stop_trim"] and not settings["skip_special_tokens"]
    assert settings["sampling_seed"] == 2**63 - 1


def test_answers_of_another_form_are_refused() -> None:
    finished = {"type": "stop"}
    meta = {"output_token_logprobs": [[-0.5, 3, None]], "finish_reason": finished}
    assert read_sample({"meta_info": meta}, 10, 4).logprobs == [-0.5]
    for bad, reason in (
        ({}, "no meta_info.output_token_logprobs"),
        ({"output_token_logprobs": [-0.5], "finish_reason": finished}, "are not entries"),
        ({"output_token_logprobs": [[None, 3]], "finish_reason": finished}, "None is not the log-prob"),
        (meta | {"finish_reason": {"type": "abort"}}, "'abort'"),
        (meta | {"finish_reason": None}, "no meta_info.finish_reason"),
    ):
        with pytest.raises(InvalidAnswer, match=reason):
            read_sample({"meta_info": bad}, 10, 4)
    scored = {"meta_info": {"input_token_logprobs": [[None, 5, None], [-1.0, 6, None]]}}
    assert read_scores(scored, [5, 6]) == [-1.0]
    with pytest.raises(InvalidAnswer, match=r"scores the tokens \[5, 6\], not \[5, 7\]"):
        read_scores(scored, [5, 7])
