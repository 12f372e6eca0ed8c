"""The engine over a real `vllm serve`, which starts once for this module: the contract, and a whole job."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from kubealign.spec.sections.engines import OpenAIEngineSpec
from kubealign.spec.sections.precision import Precision
from kubealign.spec.sections.rewards import Reward
from kubealign.spec.sections.rollout import InFlightPolicy
from kubealign.spec.sections.training import Lora
from kubealign_services.generation.contract import EngineLost, RequestRefused, SamplingParameters
from kubealign_services.generation.external.contract import ExternalEngineDied
from kubealign_services.generation.external.openai.connection import KEY_VARIABLE
from kubealign_services.generation.external.openai.engine import OpenAIExternalEngine
from kubealign_services.generation.external.weight_files import WeightFiles
from kubealign_services.runtime.process.failures import PermanentFailure
from kubealign_services.scoring.functions.errors import RewardRaised
from kubealign_services.scoring.functions.results import RewardResult
from kubealign_services.scoring.servers.contract import ServerSample
from kubealign_services.scoring.servers.factory import open_server_reward
from support.engine_contract.every_engine import EngineContract
from support.engine_contract.generation import CAPACITY, SECONDS, Subject, generated, group, refitted
from support.engine_contract.oracle import check_sample
from support.engine_contract.tiny_model import model, write_model
from support.external_stage import Stage, open_stage
from support.running import RunningJobs, left_running
from support.tiny_jobs import online_job, write_jobs
from support.vllm_environment import ABSENT
from support.vllm_server import KEY, NEEDED_OPTIONS, VllmServer

pytestmark = [
    pytest.mark.timeout(500),
    pytest.mark.skipif(bool(ABSENT), reason=ABSENT),
]

#: Room for responses that take seconds.
CONTEXT = 2048
STEPS = 6
on_one_loop = pytest.mark.asyncio(loop_scope="module")
GRPO = {"grpo": {"promptsPerStep": 8, "samplesPerPrompt": 4}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder with weights, for the server and for a job."""
    path = write_model(tmp_path_factory.mktemp("model"))
    model(1).save_pretrained(path)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"max_position_embeddings": CONTEXT}))
    (path / "chat_template.jinja").write_text("{{ messages[0]['content'] }}")
    return path


def server_of(folder: Path, **options: Any) -> VllmServer:
    log = folder.with_name("server.log")
    return VllmServer(folder, log, context=CONTEXT, sequences=CAPACITY, **options)


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[VllmServer]:
    with server_of(folder) as running:
        yield running


@pytest.fixture(autouse=True, scope="module")
def key() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(KEY_VARIABLE, KEY)
        yield


def engine_spec(server: VllmServer, **fields: Any) -> OpenAIEngineSpec:
    defaults = {"precision": Precision.FLOAT32, "url": server.url, "max_sequences": CAPACITY}
    return OpenAIEngineSpec(**(defaults | {"outage_seconds": 5.0} | fields))


def opened(
    server: VllmServer, folder: Path, memory: Path, **fields: Any
) -> AbstractAsyncContextManager[Stage]:
    return open_stage(engine_spec(server, **fields), Lora(), folder, memory)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage(
    server: VllmServer, folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Stage]:
    async with opened(server, folder, tmp_path_factory.mktemp("memory")) as running:
        yield running


@on_one_loop
class TestVllmServe(EngineContract):
    context = CONTEXT

    @pytest_asyncio.fixture(loop_scope="module")
    async def subject(self, stage: Stage) -> Subject:
        return stage.subject


@on_one_loop
async def test_responses_in_flight_cannot_be_interrupted(stage: Stage) -> None:
    for in_flight in (InFlightPolicy.INTERRUPT, InFlightPolicy.CONTINUE):
        with pytest.raises(ValueError, match=f"inFlight is {in_flight}; this engine can only Drain"):
            async with stage.subject.generator.paused(in_flight):
                raise AssertionError("it was paused")


@on_one_loop
async def test_a_judge_on_the_server(server: VllmServer, folder: Path) -> None:
    """Check scores of random weights, whose form the server enforces, and their nonsense without it."""

    async def judged(parameters: dict[str, Any]) -> list[Any]:
        judge = {"url": f"{server.url}/v1", "model": str(folder), "tokenVariable": KEY_VARIABLE}
        task = {"pointwise": {"rubric": "r", "scale": {"lowest": 1, "highest": 9}}}
        settings = {"task": task, "maxTokens": 64, "temperature": 1, "retries": 0, "parameters": parameters}
        entry = {"name": "quality", "judge": judge | settings, "timeoutSeconds": SECONDS}
        async with open_server_reward(Reward.model_validate(entry)) as reward:
            return list(await reward.outcomes([ServerSample("p", text, {}) for text in "abcd"]))

    form = {"regex": r'\{"explanation": "[a-z]{1,8}", "score": [1-9]\}'}
    results = await judged({"structured_outputs": form})
    for result in results:
        assert isinstance(result, RewardResult) and 0 <= (result.reward or 0) <= 1, result
        assert result.metrics["judge.tokens"] > 100 and result.explanation.startswith("score ")
    for error in await judged({}):
        assert isinstance(error, RewardRaised) and "gives no score" in str(error), error


@on_one_loop
async def test_a_sequence_as_long_as_the_context_is_scored(stage: Stage) -> None:
    await refitted(stage.subject, 1)
    prompt = tuple(i % 250 for i in range(CONTEXT - 12))
    request = group("long", 1, 2, prompt=prompt, top_k=5, min_tokens=12, stop_token_ids=(7,))
    for sample in (await generated(stage.subject.generator, request)).values():
        assert len(sample.tokens) == 12
        check_sample(sample, request, 1, stage.subject.folder)


@on_one_loop
async def test_a_cancelled_request_ends_in_the_server(server: VllmServer, stage: Stage) -> None:
    await refitted(stage.subject, 1)
    most = CONTEXT - 10

    async def metric(name: str) -> float:
        return await asyncio.to_thread(server.metric, f"vllm:{name}{{", "engine")

    before = await metric("generation_tokens_total")
    request = group("left", *range(CAPACITY), max_tokens=most, min_tokens=most)
    running = asyncio.create_task(generated(stage.subject.generator, request))
    async with asyncio.timeout(SECONDS):
        while await metric("generation_tokens_total") == before:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        while await metric("num_requests_running"):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    # All of them would have been generated otherwise.
    assert await metric("generation_tokens_total") - before < CAPACITY * most / 2


@on_one_loop
async def test_a_wrong_key_is_refused(
    server: VllmServer, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEY_VARIABLE, "another")
    with pytest.raises(PermanentFailure, match=rf"/v1/models with 401 \(Unauthorized\).*{KEY_VARIABLE}"):
        async with opened(server, folder, tmp_path):
            raise AssertionError("it was opened")


@on_one_loop
async def test_a_model_that_is_not_served_is_refused(
    server: VllmServer, folder: Path, tmp_path: Path
) -> None:
    with pytest.raises(PermanentFailure, match=rf"model is 'other', .* it has {folder}"):
        async with opened(server, folder, tmp_path, model="other"):
            raise AssertionError("it was opened")


@on_one_loop
async def test_a_refusal_has_the_servers_message(server: VllmServer, tmp_path: Path) -> None:
    """The prompt is foreign to the server's model alone."""
    engine = await OpenAIExternalEngine.create(engine_spec(server), 0, 5000, WeightFiles(tmp_path))
    try:
        with pytest.raises(RequestRefused, match=r"'foreign': .* 400: Token id 4000 is out of vocabulary"):
            await engine.generate("foreign", [4000], SamplingParameters(1), 1, [])
        with pytest.raises(RequestRefused, match="out of vocabulary"):
            await engine.score("foreign", [4000, 1])
    finally:
        await engine.close()


@on_one_loop
async def test_weights_of_another_worker_are_noticed(
    server: VllmServer, folder: Path, tmp_path: Path
) -> None:
    async with (
        opened(server, folder, tmp_path / "first") as first,
        opened(server, folder, tmp_path / "second") as second,
    ):
        await refitted(first.subject, 1)
        assert await generated(first.subject.generator, group("mine", 1))
        await refitted(second.subject, 2)
        async with asyncio.timeout(SECONDS):
            with pytest.raises(EngineLost, match="another worker or job loads weights into it"):
                await generated(first.subject.generator, group("lost", 1))
            with pytest.raises(ExternalEngineDied, match="has lost the weights"):
                await first.running
        assert await generated(second.subject.generator, group("mine", 1))


def grpo_job(tmp_path: Path, folder: Path, server: VllmServer) -> dict[str, Any]:
    engine = {
        "url": server.url,
        "maxSequences": CAPACITY,
        "outageSeconds": 2,
        "weightFolder": str(tmp_path / "weights"),
    }
    return online_job(
        tmp_path,
        "on-server",
        GRPO,
        maxSteps=STEPS,
        policy={"model": {"path": str(folder)}},
        rollout={"engine": {"openai": engine}, "sampling": {"maxTokens": 8}},
    )


def check_result(run: RunningJobs) -> None:
    """Check that each step was trained once, and that the engine's log-probabilities equal the trainer's."""
    lines = [line for line in run.metrics("on-server") if "seconds/step" in line]
    assert [line["step"] for line in lines] == list(range(1, STEPS + 1))
    assert max(line["rollout/logprob_gap_max"] for line in lines) < 1e-4
    assert max(line["refit/canary_gap"] for line in lines) < 1e-4


def test_grpo(server: VllmServer, folder: Path, tmp_path: Path) -> None:
    with RunningJobs(write_jobs(tmp_path, grpo_job(tmp_path, folder, server)), tmp_path / "runs") as run:
        assert run.end(timeout=300) == 0, run.output
        check_result(run)
    assert not left_running(tmp_path)
    # Weights in transfer are deleted.
    assert not list((tmp_path / "weights" / "on-server" / "rollout-0").iterdir())


@pytest.mark.full
def test_a_killed_server_costs_one_restart_of_the_worker(folder: Path, tmp_path: Path) -> None:
    """The worker ends, and its successor waits for the server and loads the weights into it."""
    with server_of(folder) as server:
        job = write_jobs(tmp_path, grpo_job(tmp_path, folder, server))
        with RunningJobs(job, tmp_path / "runs") as run:
            run.wait_for_step("on-server", 2, timeout=300)
            server.kill()
            run.wait_until(
                "the restart of the worker", lambda: "starting rollout-0 again" in run.output, timeout=120
            )
            server.start()
            assert run.end(timeout=300) == 0, run.output
            check_result(run)
            assert "(restart 1 of 10" in run.output and "(restart 2 of 10" not in run.output
    assert not left_running(tmp_path)


@pytest.mark.full
@pytest.mark.parametrize(
    ("options", "development", "reason"),
    [
        (NEEDED_OPTIONS[2:], True, "does not report log-probabilities of the distribution"),
        (NEEDED_OPTIONS, False, "cannot load the file .* /collective_rpc with 404: .*VLLM_SERVER_DEV_MODE=1"),
        (NEEDED_OPTIONS[:2], True, "'kubealign_load_weights' is not implemented"),
    ],
)
@on_one_loop
async def test_a_server_without_the_needed_options_is_refused(
    options: tuple[str, ...], development: bool, reason: str, folder: Path, tmp_path: Path
) -> None:
    server = server_of(folder, options=options, development=development)
    try:
        await asyncio.to_thread(server.start)
        with pytest.raises(PermanentFailure, match=reason):
            async with opened(server, folder, tmp_path):
                raise AssertionError("it was opened")
    finally:
        server.kill()
    assert not await asyncio.to_thread(lambda: list(tmp_path.iterdir()))
