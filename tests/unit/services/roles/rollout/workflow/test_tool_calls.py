"""Tool calls in the model's own format: tokens, results, errors and limits."""

from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from kubealign.spec.workflows.tool_calls import ToolCallsSpec
from kubealign_services.data.tokenization.tool_turns import ToolTurns
from kubealign_services.generation.contract import (
    FinishReason,
    GeneratedSample,
    GenerationRequest,
    SamplingParameters,
)
from kubealign_services.roles.rollout.workflow.episode import Episode
from kubealign_services.roles.rollout.workflow.tool_calls import ToolCallWorkflow
from kubealign_services.scoring.functions.errors import RewardMissing
from kubealign_services.tools.arguments import ArgumentValidator, closed_parameters
from kubealign_services.tools.errors import ToolFailed
from kubealign_services.tools.parsers.hermes import HermesParser
from kubealign_services.tools.toolbox import Tool, Toolbox
from support.chat_templates import FAMILIES
from support.tool_schemas import ADD

TOKENIZER = FAMILIES["qwen25"].tokenizer()
PROMPT = [{"role": "user", "content": "What is 1 and 2?"}]


def ids(text: str, tokenizer: PreTrainedTokenizerFast = TOKENIZER) -> list[int]:
    token_ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return token_ids


def call(a: Any, b: Any = 2, name: str = "add") -> str:
    body = '{"name": "NAME", "arguments": {"a": A, "b": B}}'
    return (
        f"<tool_call>\n{body.replace('NAME', name).replace('A', str(a)).replace('B', str(b))}\n</tool_call>"
    )


def results(*texts: str) -> str:
    """Return what the template writes from the end of a turn to the opening of the next one."""
    responses = "".join(f"\n<tool_response>\n{text}\n</tool_response>" for text in texts)
    return f"\n<|im_start|>user{responses}<|im_end|>\n<|im_start|>assistant\n"


class Script:
    """Policy that generates given turns, each with its end, and records its requests."""

    def __init__(
        self, *turns: str, end: str = "<|im_end|>", tokenizer: PreTrainedTokenizerFast = TOKENIZER
    ) -> None:
        self.turns, self.end, self.tokenizer = list(turns), end, tokenizer
        self.asked: list[GenerationRequest] = []

    async def __call__(self, request: GenerationRequest) -> GeneratedSample:
        self.asked.append(request)
        text = self.turns.pop(0)
        rendered = ids(text + self.end, self.tokenizer)
        tokens = rendered[: request.sampling.max_tokens]
        return GeneratedSample(
            request_id=request.request_id,
            sample=0,
            tokens=tokens,
            behaviour_logprobs=[-0.5] * len(tokens),
            engine_logprobs=[-0.25] * len(tokens),
            versions=[3] * len(tokens),
            finish=FinishReason.LENGTH if len(tokens) < len(rendered) else FinishReason.STOP,
            text=self.tokenizer.decode(tokens, skip_special_tokens=True),
        )


async def add(arguments: dict[str, Any]) -> str:
    if arguments["a"] == 13:
        raise ToolFailed("ValueError: 13 brings bad luck")
    return str(arguments["a"] + arguments["b"])


async def gone(arguments: dict[str, Any]) -> str:
    raise RewardMissing("cannot be imported")


def spec(**changes: object) -> ToolCallsSpec:
    return ToolCallsSpec.model_validate({"tools": [{"function": {"module": "a:b"}}]} | changes)


async def run(script: Script, max_tokens: int = 2000, **changes: object) -> Episode:
    tokenizer = script.tokenizer
    prompt = tokenizer.apply_chat_template(PROMPT, tools=[ADD], add_generation_prompt=True, return_dict=False)
    request = GenerationRequest("1:train:0/1:0", tuple(prompt), (7,), SamplingParameters(max_tokens))
    episode = Episode("", {}, request, tokenizer, script)
    parallel = changes.get("parallelCalls") is not False
    turns = ToolTurns(tokenizer, [ADD], {}, is_parallel=parallel)
    validator = ArgumentValidator(closed_parameters(ADD["function"]["parameters"]))
    toolbox = Toolbox({"add": Tool(validator, add), "gone": Tool(ArgumentValidator({}), gone)})
    await ToolCallWorkflow(spec(**changes), toolbox, HermesParser(), turns)(episode)
    return episode


async def test_the_result_follows_as_the_template_renders_it_and_is_not_trained_on() -> None:
    script = Script(call(1), "3")
    episode = await run(script)
    result = episode.transcript
    turn, answer, last = ids(call(1) + "<|im_end|>"), ids(results("3")), ids("3<|im_end|>")
    assert result.tokens == turn + answer + last
    assert result.loss_mask == [1] * len(turn) + [0] * len(answer) + [1] * len(last)
    assert result.versions == [3] * len(turn) + [-1] * len(answer) + [3] * len(last)
    assert result.behaviour_logprobs == [-0.5] * len(turn) + [0.0] * len(answer) + [-0.5] * len(last)
    assert (result.turns, result.tool_errors, result.truncated) == (2, 0, False)
    # Prompt and response are the conversation as the template renders it.
    messages = [
        *PROMPT,
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": 2}}}],
        },
        {"role": "tool", "name": "add", "content": "3"},
        {"role": "assistant", "content": "3"},
    ]
    rendered = TOKENIZER.apply_chat_template(messages, tools=[ADD], return_dict=False)
    prompt = script.asked[0].prompt_tokens
    assert [*prompt, *result.tokens, *ids("\n")] == rendered
    # The second turn continues from all of it, with another seed and the remaining room.
    assert script.asked[1].prompt_tokens == (*prompt, *turn, *answer)
    assert script.asked[0].seeds != script.asked[1].seeds
    assert script.asked[1].sampling.max_tokens == 2000 - len(turn) - len(answer)
    # Rewards read the text without special tokens.
    assert result.text == TOKENIZER.decode(result.tokens, skip_special_tokens=True)
    assert "<tool_response>\n3\n</tool_response>" in result.text
    assert "<|im_" not in result.text


async def test_all_calls_of_a_turn_are_answered_in_their_order() -> None:
    script = Script(f"{call(1)}\n{call(5)}", "3 and 7")
    episode = await run(script)
    assert results("3", "7") in TOKENIZER.decode(episode.transcript.tokens)
    first = await run(Script(f"{call(1)}\n{call(5)}", "3"), parallelCalls=False)
    assert results("3") in TOKENIZER.decode(first.transcript.tokens)
    assert first.transcript.tool_errors == 0


@pytest.mark.parametrize(
    ("turn", "error"),
    [
        (call(1, name="mul"), "error: there is no tool mul; there are add, gone"),
        (call('"x"'), "error: the arguments of add are not valid: a: 'x' is not of type 'integer'"),
        (
            '<tool_call>{"name": "add", "arguments": {"a": 1}}',
            "error: the arguments of add are not valid: 'b' is",
        ),
        ("<tool_call>{bad}</tool_call>", "error: the call is not JSON: Expecting property name"),
        (call(13), "error: ValueError: 13 brings bad luck"),
    ],
)
async def test_a_failed_call_is_an_error_for_the_policy(turn: str, error: str) -> None:
    episode = await run(Script(turn, "0"))
    assert f"<tool_response>\n{error}" in episode.transcript.text
    assert (episode.transcript.tool_errors, episode.transcript.turns) == (1, 2)


async def test_a_long_error_is_cut() -> None:
    episode = await run(Script(call(f'"{"x" * 5000}"'), "0"), max_tokens=20_000)
    error = episode.transcript.text.partition("<tool_response>\n")[2].partition("\n</tool_response>")[0]
    assert len(error) == 1000


async def test_a_tool_that_cannot_be_imported_any_more_fails_the_group() -> None:
    with pytest.raises(RewardMissing):
        await run(Script(call(1, name="gone"), "0"))


async def test_the_response_ends_at_the_limits() -> None:
    three = [call(1), call(2), call(3)]
    turns = (await run(Script(*three), maxTurns=3)).transcript
    assert (turns.turns, turns.truncated, turns.tool_errors) == (3, False, 0)
    assert turns.text.count("<tool_response>") == 2
    calls = (await run(Script(*three), maxCalls=1)).transcript
    assert (calls.turns, calls.text.count("<tool_response>")) == (2, 1)
    # A turn may begin within the limit and exceed it.
    several = (await run(Script(f"{call(1)}{call(2)}", "3"), maxCalls=1)).transcript
    assert results("3", "error: a response may have 1 calls") in TOKENIZER.decode(several.tokens)
    assert several.tool_errors == 1


async def test_a_result_without_room_truncates_the_response() -> None:
    length = len(ids(call(1) + "<|im_end|>")) + len(ids(results("3")))
    short = (await run(Script(call(1), "3"), max_tokens=length)).transcript
    assert (short.turns, short.truncated) == (1, True)
    assert short.tokens == ids(call(1) + "<|im_end|>")
    fits = (await run(Script(call(1), "3"), max_tokens=length + 1)).transcript
    assert (fits.turns, len(fits.tokens), fits.truncated) == (2, length + 1, True)


async def test_a_turn_cut_at_its_length_calls_nothing() -> None:
    cut = (await run(Script(call(1)), max_tokens=len(ids(call(1))))).transcript
    assert (cut.turns, cut.truncated, cut.tool_errors) == (1, True, 0)


async def test_a_turn_that_ended_at_a_stop_string_gets_its_end() -> None:
    result = (await run(Script(call(1), "3", end=""))).transcript
    turn = ids(call(1))
    assert result.tokens == turn + ids("<|im_end|>" + results("3")) + ids("3")
    assert result.loss_mask[len(turn)] == 0


async def test_reasoning_stays_as_it_was_generated_and_calls_nothing() -> None:
    tokenizer = FAMILIES["qwen3"].tokenizer()
    thought = f"<think>\n{call(7)}\n</think>\n\n{call(1)}"
    result = (await run(Script(thought, "3", tokenizer=tokenizer))).transcript
    assert result.tokens == ids(f"{thought}<|im_end|>{results('3')}3<|im_end|>", tokenizer)
    assert result.tool_errors == 0
