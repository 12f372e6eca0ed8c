"""Responses of several turns: tokens that are trained on and tokens that are not."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from kubealign.spec.sections.engines import TorchEngineSpec as EngineSpec
from kubealign.spec.sections.training import Trainer
from kubealign.spec.workflows.tool_functions import ToolFunction
from kubealign.spec.workflows.workflow import ToolSpec, ToolUseSpec, WorkflowFunction
from kubealign.v1 import rollout_pb2
from kubealign_services.batch.codec import decode
from kubealign_services.data.models.model_builder import build_model
from kubealign_services.data.tokenization.tokenizers import train_character_tokenizer
from kubealign_services.generation.contract import (
    FinishReason,
    GeneratedSample,
    GenerationRequest,
    SamplingParameters,
)
from kubealign_services.generation.torch_engine.engine import TorchRolloutEngine
from kubealign_services.roles.rollout.generator import SteppedGenerator
from kubealign_services.roles.rollout.messages import split_into_parts
from kubealign_services.roles.rollout.sample_producers import MultiTurn
from kubealign_services.roles.rollout.workflow.contract import WorkflowFailed
from kubealign_services.roles.rollout.workflow.custom import CustomWorkflow
from kubealign_services.roles.rollout.workflow.episode import Episode
from kubealign_services.roles.rollout.workflow.tool_use import ToolWorkflow
from kubealign_services.scoring.functions.errors import RewardHung
from kubealign_services.training.contract import Head
from kubealign_services.training.torch_backend.backend import TorchTrainingBackend
from support.tiny_jobs import ARCHITECTURE

TOKENIZER = train_character_tokenizer(["0123456789+=[]<>:abcdefghijklmnopqrstuvwxyz "])


def ids(text: str) -> list[int]:
    token_ids: list[int] = TOKENIZER(text, add_special_tokens=False)["input_ids"]
    return token_ids


class Script:
    """Policy that generates given texts, up to a stop string, and records its requests."""

    def __init__(self, *texts: str) -> None:
        self.texts = list(texts)
        self.asked: list[GenerationRequest] = []

    async def __call__(self, request: GenerationRequest) -> GeneratedSample:
        self.asked.append(request)
        text = self.texts.pop(0)
        tokens = ids(text)[: request.sampling.max_tokens]
        ended = next((stop for stop in request.sampling.stop if text.endswith(stop)), "")
        cut = len(tokens) < len(ids(text))
        if not cut and not ended:
            tokens.append(TOKENIZER.eos_token_id)
            cut = len(tokens) > request.sampling.max_tokens
        return GeneratedSample(
            request_id=request.request_id,
            sample=0,
            tokens=tokens,
            behaviour_logprobs=[-0.5] * len(tokens),
            engine_logprobs=[-0.25] * len(tokens),
            versions=[3] * len(tokens),
            finish=FinishReason.LENGTH if cut else FinishReason.STOP,
            text=text.removesuffix(ended) if ended else text[: len(tokens)],
        )


class Adder:
    async def invoke(self, argument: str) -> str:
        if argument == "hang":
            raise RewardHung("did not answer")
        return str(sum(int(part) for part in argument.split("+")))


def episode(script: Script, max_tokens: int = 40) -> Episode:
    request = GenerationRequest("1:train:0/1:0", tuple(ids("1+2=")), (7,), SamplingParameters(max_tokens))
    return Episode("1+2=", {}, request, TOKENIZER, script)


def tool_use(**changes: object) -> ToolUseSpec:
    settings: dict[str, object] = {
        "tools": [ToolSpec(name="add", function=ToolFunction(module="a:b"))],
        "end": "]",
        "pattern": r"\[(?:(?P<name>\w+):)?(?P<argument>[^\]]*)\]$",
        "answer": "<{result}>",
    }
    return ToolUseSpec.model_validate(settings | changes)


async def test_the_tools_answer_is_inserted_and_not_trained_on() -> None:
    script = Script("[1+2]", "3")
    one_episode = episode(script)
    await ToolWorkflow(tool_use(), {"add": Adder()})(one_episode)
    result = one_episode.transcript
    assert result.text == "[1+2]<3>3"
    # five characters of the call, three of the answer, one more and the end
    assert result.loss_mask == [1] * 5 + [0] * 3 + [1] * 2
    assert result.versions == [3] * 5 + [-1] * 3 + [3] * 2
    assert result.behaviour_logprobs == [-0.5] * 5 + [0.0] * 3 + [-0.5] * 2
    assert result.tokens == [*ids("[1+2]<3>3"), TOKENIZER.eos_token_id]
    assert (result.turns, result.tool_errors, result.truncated) == (2, 0, False)
    # The second turn continues from the complete sequence, with another seed and the remaining room.
    first, second = script.asked
    assert second.prompt_tokens == (*ids("1+2="), *ids("[1+2]<3>"))
    assert first.seeds != second.seeds
    assert second.sampling.max_tokens == 40 - 8


@pytest.mark.parametrize(
    ("call", "answer"),
    [
        ("[mul:1+2]", "<error: there is no tool mul; there are add>"),
        ("[hang]", "<error: hung>"),
    ],
)
async def test_tool_errors_are_shown_to_the_policy(call: str, answer: str) -> None:
    one_episode = episode(Script(call, "0"), max_tokens=80)
    await ToolWorkflow(tool_use(), {"add": Adder()})(one_episode)
    assert one_episode.transcript.text == f"{call}{answer}0"
    assert one_episode.transcript.tool_errors == 1


async def test_a_response_ends_after_its_last_call_or_without_room() -> None:
    one_episode = episode(Script("[1+2]", "[1+2]", "[1+2]"))
    await ToolWorkflow(tool_use(maxCalls=1), {"add": Adder()})(one_episode)
    assert one_episode.transcript.text == "[1+2]<3>[1+2]"
    assert not one_episode.transcript.truncated
    # The answer takes three tokens and one must be left for the policy: nine are too few.
    short = episode(Script("[1+2]"), max_tokens=8)
    await ToolWorkflow(tool_use(), {"add": Adder()})(short)
    assert (short.transcript.text, short.transcript.truncated) == ("[1+2]", True)


async def test_a_custom_workflow(tmp_path: Path) -> None:
    path = tmp_path / "flow.py"
    path.write_text(
        "async def workflow(episode):\n"
        "    turn = await episode.generate(stop=[':'])\n"
        "    while turn.stop == ':' and episode.put(' ' + episode.columns['hint'] + ' '):\n"
        "        turn = await episode.generate(stop=[':'])\n"
        "async def nothing(episode):\n    pass\n"
        "async def broken(episode):\n    raise KeyError('x')\n"
        "def plain(episode):\n    pass\n"
    )

    def named(name: str) -> CustomWorkflow:
        return CustomWorkflow.from_spec(
            WorkflowFunction.model_validate({"file": {"path": str(path), "name": name}})
        )

    one_episode = episode(Script("what:", "so"))
    one_episode.columns = {"hint": "ab"}
    await named("workflow")(one_episode)
    assert one_episode.transcript.text == "what: ab so"
    assert one_episode.transcript.loss_mask == [1] * 5 + [0] * 4 + [1] * 3
    with pytest.raises(WorkflowFailed, match=r"ended without a call of episode\.generate"):
        await named("nothing")(episode(Script()))
    with pytest.raises(WorkflowFailed, match="raised KeyError"):
        await named("broken")(episode(Script()))
    with pytest.raises(WorkflowFailed, match=r"must be an async function of one argument"):
        named("plain")
    with pytest.raises(WorkflowFailed, match=r"is not defined there; it defines: broken, nothing"):
        named("other")


async def asks_twice(episode: Episode) -> None:
    await episode.generate(max_tokens=3)
    if episode.put(" ab "):
        await episode.generate(max_tokens=3)


async def compute(function: object, *arguments: object) -> object:
    await asyncio.sleep(0)
    return function(*arguments)  # type: ignore[operator]


async def test_engine_and_trainer_logprobs_agree_across_environment_tokens(
    tmp_path: Path,
) -> None:
    """Two samples of a group through a real engine; a plain forward pass over the complete sequence gives the
    same numbers.
    """
    build_model(ARCHITECTURE | {"initializer_range": 0.1}, TOKENIZER, 1, tmp_path / "m", "architecture")
    backend = TorchTrainingBackend.create(tmp_path / "m", Head.LANGUAGE_MODEL, Trainer(), total_updates=1)
    engine = TorchRolloutEngine.create(tmp_path / "m", EngineSpec(max_sequences=8))
    engine.refit(backend.snapshot(), 4)
    generator = SteppedGenerator(engine, compute)  # type: ignore[arg-type]
    running = asyncio.create_task(generator.run())
    # Its thread calls the engine on this event loop.
    workflow = CustomWorkflow(asks_twice, "asks_twice")
    item = rollout_pb2.WorkItem(
        group_id="0/1",
        prompt_tokens=ids("1+2="),
        samples=2,
        seeds=[1, 2],
        sampling=rollout_pb2.Sampling(max_tokens=12, temperature=1.0, top_p=1.0),
        columns=json.dumps({"prompt": "1+2=", "columns": {}}).encode(),
        purpose="train",
    )
    try:
        rollouts: Sequence[rollout_pb2.Rollout] = [
            rollout
            for part in split_into_parts(item)
            async for rollout in MultiTurn(generator, "w", workflow, TOKENIZER, {}).make(item, part)
        ]
    finally:
        running.cancel()
        workflow.close()
    assert sorted(rollout.sample for rollout in rollouts) == [0, 1]
    assert len({rollout.response for rollout in rollouts}) == 2
    for rollout in rollouts:
        assert rollout.turns == 2
        batch = decode(rollout.sequence)
        mask = batch.token("loss_mask").bool()
        assert not mask[:4].any()
        assert batch.token("weight_version")[mask].unique().tolist() == [4]
        forward = backend.forward(batch, frozenset({"logprobs"}))["logprobs"]
        assert torch.allclose(forward[mask], batch.token("engine_logprobs")[mask], atol=1e-4)
        assert not batch.token("engine_logprobs")[~mask].any()
