"""OpenAI API of a session, called with the client library: replies, turns of the episode, and errors."""

import asyncio
from collections.abc import Sequence
from typing import Any

import openai
import pytest

from kubealign.spec.workflows.agents import OtherSampling
from kubealign_services.roles.rollout.agents.replies import MODEL
from support.agent_sessions import ScriptedPolicy, make_episode, serve_episode
from support.chat_templates import FAMILIES
from support.tool_schemas import ADD

TOKENIZER = FAMILIES["qwen25"].tokenizer()
QUESTION = [{"role": "user", "content": "What is one and one?"}]


def ids(text: str) -> list[int]:
    token_ids: list[int] = TOKENIZER(text, add_special_tokens=False)["input_ids"]
    return token_ids


def render(messages: Sequence[Any], **options: Any) -> list[int]:
    return list(
        TOKENIZER.apply_chat_template(
            list(messages), add_generation_prompt=True, return_dict=False, **options
        )
    )


async def test_a_continued_conversation_is_one_sequence_of_the_sampled_tokens() -> None:
    """The second prompt has the recorded ids of the first answer, which its text is not encoded as."""
    # The letters one by one: the tokenizer would merge them.
    spelled = [token for letter in "the user" for token in ids(letter)] + ids("<|im_end|>")
    assert ids("the user") != spelled[:-1]
    policy = ScriptedPolicy(TOKENIZER, spelled, "two")
    episode = make_episode(TOKENIZER, policy, render(QUESTION))
    async with serve_episode(episode, TOKENIZER) as (client, _, _):
        first = await client.chat.completions.create(model=MODEL, messages=QUESTION)
        assert first.choices[0].message.content == "the user"
        assert first.choices[0].finish_reason == "stop"
        more = [*QUESTION, first.choices[0].message, {"role": "user", "content": "Again?"}]
        second = await client.chat.completions.create(model=MODEL, messages=more)
    assert second.choices[0].message.content == "two"
    between = ids("\n<|im_start|>user\nAgain?<|im_end|>\n<|im_start|>assistant\n")
    last = ids("two<|im_end|>")
    result = episode.transcript
    assert episode.sequences == [episode]
    assert result.tokens == [*spelled, *between, *last]
    assert result.loss_mask == [1] * len(spelled) + [0] * len(between) + [1] * len(last)
    assert result.versions == [1] * len(spelled) + [-1] * len(between) + [2] * len(last)
    assert result.behaviour_logprobs[: len(spelled)] == [-0.25 * (n + 1) for n in range(len(spelled))]
    # The policy saw the recorded sequence.
    assert policy.requests[1].prompt_tokens == (*render(QUESTION), *spelled, *between)
    assert second.usage is not None
    assert second.usage.prompt_tokens == len(policy.requests[1].prompt_tokens)
    assert second.usage.completion_tokens == len(last)


async def test_another_conversation_is_another_sequence() -> None:
    policy = ScriptedPolicy(TOKENIZER, "two", "one", "three")
    episode = make_episode(TOKENIZER, policy, render(QUESTION), max_sequences=2)
    other = [{"role": "system", "content": "Summarise."}, *QUESTION]
    async with serve_episode(episode, TOKENIZER, max_sequences=2) as (client, session, _):
        # The row's prompt is never sent: both sequences are the agent's own.
        await client.chat.completions.create(model=MODEL, messages=other)
        changed = [*other, {"role": "assistant", "content": "tw0"}, {"role": "user", "content": "And?"}]
        await client.chat.completions.create(model=MODEL, messages=changed)
        with pytest.raises(openai.BadRequestError, match=r"raise rollout\.maxSequencesPerSample") as refusal:
            await client.chat.completions.create(model=MODEL, messages=QUESTION)
        assert refusal.value.code == "too_many_sequences"
        # The agent cannot hide that its response is incomplete.
        with pytest.raises(RuntimeError, match="continues none of the 2 sequences"):
            session.failure.result()
    first, second = episode.sequences
    assert first.prompt_tokens == tuple(render(other))
    assert second.prompt_tokens == tuple(render(changed))
    assert [each.transcript.text for each in (first, second)] == ["two", "one"]


async def test_tool_calls_are_read_and_their_results_continue_the_sequence() -> None:
    """The raw call has other white space than the template would write."""
    raw = 'So: <tool_call>{"name":"add",  "arguments":{"a":1,"b":2}}</tool_call>'
    policy = ScriptedPolicy(TOKENIZER, raw, "three")
    tools = [ADD]
    episode = make_episode(TOKENIZER, policy, render(QUESTION, tools=tools), max_tokens=400)
    async with serve_episode(episode, TOKENIZER) as (client, _, _):
        first = await client.chat.completions.create(model=MODEL, messages=QUESTION, tools=tools)
        choice = first.choices[0]
        assert choice.finish_reason == "tool_calls"
        (call,) = choice.message.tool_calls or ()
        assert (call.function.name, call.function.arguments) == ("add", '{"a": 1, "b": 2}')
        more = [*QUESTION, choice.message, {"role": "tool", "tool_call_id": call.id, "content": "3"}]
        await client.chat.completions.create(model=MODEL, messages=more, tools=tools)
    between = "\n<|im_start|>user\n<tool_response>\n3\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    assert episode.sequences == [episode]
    assert episode.transcript.tokens == [
        *ids(raw + "<|im_end|>"),
        *ids(between),
        *ids("three<|im_end|>"),
    ]
    assert policy.requests[1].prompt_tokens == (
        *render(QUESTION, tools=tools),
        *ids(raw + "<|im_end|>"),
        *ids(between),
    )


async def test_a_call_that_cannot_be_read_is_text() -> None:
    policy = ScriptedPolicy(TOKENIZER, "<tool_call>{add}</tool_call>")
    episode = make_episode(TOKENIZER, policy, render(QUESTION, tools=[ADD]), max_tokens=400)
    async with serve_episode(episode, TOKENIZER) as (client, _, _):
        reply = await client.chat.completions.create(model=MODEL, messages=QUESTION, tools=[ADD])
    assert reply.choices[0].message.tool_calls is None
    assert reply.choices[0].message.content == "<tool_call>{add}</tool_call>"
    assert reply.choices[0].finish_reason == "stop"


async def test_streams_have_the_chunks_of_the_api() -> None:
    policy = ScriptedPolicy(TOKENIZER, "two")
    episode = make_episode(TOKENIZER, policy, render(QUESTION))
    async with serve_episode(episode, TOKENIZER) as (client, _, _):
        stream = await client.chat.completions.create(
            model=MODEL,
            messages=QUESTION,
            stream=True,
            logprobs=True,
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in stream]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == "two"
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]] == [None, None, "stop"]
    logprobs = chunks[1].choices[0].logprobs
    assert logprobs is not None and logprobs.content is not None
    assert [each.logprob for each in logprobs.content] == episode.transcript.behaviour_logprobs
    assert "".join(each.token for each in logprobs.content) == "two<|im_end|>"
    assert chunks[-1].choices == []
    usage = chunks[-1].usage
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens) == (len(render(QUESTION)), len(ids("two")) + 1)


async def test_tool_calls_are_streamed_with_their_index() -> None:
    policy = ScriptedPolicy(TOKENIZER, '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>')
    episode = make_episode(TOKENIZER, policy, render(QUESTION, tools=[ADD]), max_tokens=400)
    async with (
        serve_episode(episode, TOKENIZER) as (client, _, _),
        client.chat.completions.stream(model=MODEL, messages=QUESTION, tools=[ADD]) as stream,
    ):
        reply = await stream.get_final_completion()
    (call,) = reply.choices[0].message.tool_calls or ()
    assert (call.function.name, call.function.arguments) == ("add", '{"a": 1}')
    assert reply.choices[0].finish_reason == "tool_calls"


async def test_completions_continue_a_text() -> None:
    """A stop string ends the turn and is no part of the reply; the agent writes it again."""
    policy = ScriptedPolicy(TOKENIZER, "one?", "two")
    episode = make_episode(TOKENIZER, policy, ids("what is"))
    async with serve_episode(episode, TOKENIZER) as (client, _, _):
        first = await client.completions.create(model=MODEL, prompt="what is", stop="?", logprobs=1)
        assert first.choices[0].text == "one"
        assert first.choices[0].logprobs is not None
        assert first.choices[0].logprobs.token_logprobs == episode.transcript.behaviour_logprobs
        second = await client.completions.create(
            model=MODEL, prompt=f"what is{first.choices[0].text}? no.", max_tokens=1
        )
    assert second.choices[0].finish_reason == "length"
    assert episode.sequences == [episode]
    assert episode.transcript.tokens == [*ids("one?"), *ids(" no."), *ids("two")[:1]]
    assert policy.requests[1].sampling.max_tokens == 1


async def test_concurrent_requests_are_sequences_of_their_own() -> None:
    """Both continue the same sequence; the second one begins another, since the first one is generating."""
    both = asyncio.Barrier(2)

    class Meeting(ScriptedPolicy):
        async def __call__(self, request: Any) -> Any:
            sample = await super().__call__(request)
            if len(self.requests) > 1:
                await both.wait()
            return sample

    policy = Meeting(TOKENIZER, "one", "two", "two")
    episode = make_episode(TOKENIZER, policy, ids("what is"), max_sequences=2)
    async with serve_episode(episode, TOKENIZER, max_sequences=2) as (client, _, _):
        first = await client.completions.create(model=MODEL, prompt=ids("what is"))
        assert first.choices[0].text == "one"
        prompt = [*ids("what is"), *ids("one<|im_end|>"), *ids(" and")]
        async with asyncio.timeout(20):
            await asyncio.gather(*(client.completions.create(model=MODEL, prompt=prompt) for _ in range(2)))
    first_sequence, second_sequence = episode.sequences
    assert first_sequence.transcript.turns == 2
    assert second_sequence.prompt_tokens == tuple(prompt)
    assert second_sequence.transcript.loss_mask == [1] * len(ids("two<|im_end|>"))


@pytest.mark.parametrize(
    ("parameters", "param", "message"),
    [
        ({"temperature": 0.5}, "temperature", "0.5 is not that of the job, 1"),
        ({"top_p": 0.5}, "top_p", "otherSampling"),
        ({"n": 2}, "n", "Input should be 1"),
        ({"presence_penalty": 1}, "presence_penalty", "Input should be 0"),
        ({"top_logprobs": 3}, "top_logprobs", "Input should be 0"),
        ({"tool_choice": "required"}, "tool_choice", "Input should be 'auto'"),
        ({"response_format": {"type": "json_object"}}, "response_format", "is not supported"),
        ({"max_tokens": 0}, "max_tokens", "greater than or equal to 1"),
        ({"stop": [""]}, "stop.0", "at least 1 character"),
        ({"stop": list("abcde")}, "stop", "at most 4 items"),
        ({"model": "gpt-4o"}, "model", "only 'policy'"),
        ({"messages": [{"role": "poet", "content": "a"}]}, "messages.0.role", "'system', 'developer'"),
        ({"messages": []}, "messages", "at least 1 item"),
    ],
)
async def test_parameters_are_checked(parameters: dict[str, Any], param: str, message: str) -> None:
    policy = ScriptedPolicy(TOKENIZER)
    episode = make_episode(TOKENIZER, policy, render(QUESTION))
    async with serve_episode(episode, TOKENIZER) as (client, _, _):
        with pytest.raises((openai.BadRequestError, openai.NotFoundError)) as refusal:
            await client.chat.completions.create(**{"model": MODEL, "messages": QUESTION} | parameters)
    assert refusal.value.param == param
    assert message in refusal.value.message
    assert policy.requests == []


async def test_other_sampling_is_overridden_with_a_note() -> None:
    policy = ScriptedPolicy(TOKENIZER, "two")
    episode = make_episode(TOKENIZER, policy, render(QUESTION))
    async with serve_episode(episode, TOKENIZER, other=OtherSampling.OVERRIDE) as (client, _, _):
        reply = await client.chat.completions.create(
            model=MODEL, messages=QUESTION, temperature=0, top_p=1, seed=3
        )
    assert (reply.model_extra or {})["notes"] == [
        "temperature: 1 of the job applies, not 0",
        "seed: not used; each turn of each sample has a seed of its own",
    ]
    assert policy.requests[0].sampling.temperature == 1


async def test_a_conversation_without_room_is_refused() -> None:
    policy = ScriptedPolicy(TOKENIZER, "two")
    episode = make_episode(TOKENIZER, policy, render(QUESTION), max_tokens=20)
    async with serve_episode(episode, TOKENIZER) as (client, _, _):
        first = await client.chat.completions.create(model=MODEL, messages=QUESTION)
        more = [*QUESTION, first.choices[0].message, {"role": "user", "content": "one " * 20}]
        with pytest.raises(openai.BadRequestError, match=r"rollout\.sampling\.maxTokens") as refusal:
            await client.chat.completions.create(model=MODEL, messages=more)
    assert refusal.value.code == "context_length_exceeded"
    assert episode.transcript.truncated


async def test_keys_end_with_their_session() -> None:
    policy = ScriptedPolicy(TOKENIZER)
    episode = make_episode(TOKENIZER, policy, render(QUESTION))
    async with serve_episode(episode, TOKENIZER) as (client, session, _):
        assert [model.id async for model in client.models.list()] == [MODEL]
        with pytest.raises(openai.AuthenticationError, match="is over"):
            await client.with_options(api_key="other").models.list()
        await session.close()
        with pytest.raises(openai.AuthenticationError, match="is over"):
            await client.chat.completions.create(model=MODEL, messages=QUESTION)
    assert policy.requests == []


async def test_a_cancelled_request_leaves_no_turn_and_can_be_repeated() -> None:
    """A client that disconnects during the second turn asks again: the sequence has the turn once."""
    generating, disconnected = asyncio.Event(), asyncio.Event()

    class Interrupted(ScriptedPolicy):
        async def __call__(self, request: Any) -> Any:
            if len(self.requests) == 1 and not generating.is_set():
                generating.set()
                try:
                    await asyncio.Event().wait()
                finally:
                    disconnected.set()
            return await super().__call__(request)

    policy = Interrupted(TOKENIZER, "two", "three")
    episode = make_episode(TOKENIZER, policy, render(QUESTION))
    async with serve_episode(episode, TOKENIZER) as (client, _, _), asyncio.timeout(20):
        first = await client.chat.completions.create(model=MODEL, messages=QUESTION)
        more = [*QUESTION, first.choices[0].message, {"role": "user", "content": "Again?"}]
        request = asyncio.create_task(client.chat.completions.create(model=MODEL, messages=more))
        await generating.wait()
        request.cancel()
        await disconnected.wait()
        await client.chat.completions.create(model=MODEL, messages=more)
    between = ids("\n<|im_start|>user\nAgain?<|im_end|>\n<|im_start|>assistant\n")
    assert episode.sequences == [episode]
    assert episode.transcript.tokens == [*ids("two<|im_end|>"), *between, *ids("three<|im_end|>")]
    assert episode.transcript.turns == 2
