"""Conversations in chat templates of several families: one sequence, unless a template rewrites answers."""

import pytest

from kubealign_services.roles.rollout.agents.replies import MODEL
from support.agent_sessions import ScriptedPolicy, make_episode, serve_episode
from support.chat_templates import FAMILIES

FIRST, SECOND = ({"role": "user", "content": text} for text in ("what is one", "and two"))


@pytest.mark.parametrize("name", ["llama3", "qwen25", "qwen3", "gemma3", "phi4", "mistral", "smollm2"])
async def test_a_conversation_is_the_sequence_of_its_template(name: str) -> None:
    """Prompt and response are the tokens of the conversation as the template renders it in one piece."""
    family = FAMILIES[name]
    tokenizer = family.tokenizer()
    prompt = tokenizer.apply_chat_template([FIRST], add_generation_prompt=True, return_dict=False)
    policy = ScriptedPolicy(tokenizer, "two", "one", end=family.end)
    episode = make_episode(tokenizer, policy, prompt)
    async with serve_episode(episode, tokenizer) as (client, _, _):
        reply = await client.chat.completions.create(model=MODEL, messages=[FIRST])
        messages = [FIRST, reply.choices[0].message, SECOND]
        await client.chat.completions.create(model=MODEL, messages=messages)
    assert episode.sequences == [episode]
    answer = {"role": "assistant", "content": "two"}
    rendered = tokenizer.apply_chat_template(
        [FIRST, answer, SECOND], add_generation_prompt=True, return_dict=False
    )
    assert policy.requests[1].prompt_tokens == tuple(rendered)


async def test_reasoning_that_the_template_removes_begins_another_sequence() -> None:
    """The second prompt is the one that a server of the model would build: without earlier reasoning."""
    family = FAMILIES["qwen3"]
    tokenizer = family.tokenizer()
    prompt = tokenizer.apply_chat_template([FIRST], add_generation_prompt=True, return_dict=False)
    policy = ScriptedPolicy(tokenizer, "<think>\none\n</think>\n\ntwo", "one")
    episode = make_episode(tokenizer, policy, prompt, max_sequences=2)
    async with serve_episode(episode, tokenizer, max_sequences=2) as (client, _, _):
        reply = await client.chat.completions.create(model=MODEL, messages=[FIRST])
        messages = [FIRST, reply.choices[0].message, SECOND]
        await client.chat.completions.create(model=MODEL, messages=messages)
    first, second = episode.sequences
    assert first.transcript.turns == second.transcript.turns == 1
    text = tokenizer.decode(list(second.prompt_tokens))
    assert "two" in text
    assert "think" not in text
