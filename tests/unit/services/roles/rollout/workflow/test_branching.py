"""Episodes of several sequences, from `episode.branch` to the rollout message."""

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerBase

from kubealign.v1 import rollout_pb2
from kubealign_services.batch.codec import decode
from kubealign_services.data.tokenization.tokenizers import train_character_tokenizer
from kubealign_services.generation.contract import (
    FinishReason,
    GeneratedSample,
    GenerationRequest,
    SamplingParameters,
)
from kubealign_services.roles.rollout.messages import split_into_parts, to_rollout
from kubealign_services.roles.rollout.sample_producers import MultiTurn
from kubealign_services.roles.rollout.workflow.branching import Branching
from kubealign_services.roles.rollout.workflow.contract import WorkflowFailed
from kubealign_services.roles.rollout.workflow.custom import CustomWorkflow
from kubealign_services.roles.rollout.workflow.episode import Episode, Transcript

TOKENIZER = train_character_tokenizer(["0123456789+=?<>abcdefghijklmnopqrstuvwxyz"])


def ids(text: str, tokenizer: PreTrainedTokenizerBase = TOKENIZER) -> list[int]:
    token_ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return token_ids


class Policy:
    """Answers with the given texts; the n-th answer has version n and log-probabilities of -n / 8."""

    def __init__(self, *texts: str) -> None:
        self.texts = list(texts)
        self.requests: list[GenerationRequest] = []

    async def __call__(self, request: GenerationRequest) -> GeneratedSample:
        self.requests.append(request)
        number = len(self.requests)
        tokens = ids(self.texts[number - 1])
        cut = len(tokens) >= request.sampling.max_tokens
        tokens = tokens[: request.sampling.max_tokens]
        return GeneratedSample(
            request_id=request.request_id,
            sample=0,
            tokens=tokens,
            behaviour_logprobs=[-number / 8] * len(tokens),
            engine_logprobs=[-number / 4] * len(tokens),
            versions=[number] * len(tokens),
            finish=FinishReason.LENGTH if cut else FinishReason.STOP,
            text=self.texts[number - 1][: len(tokens)],
            seconds=float(number),
        )

    async def generate(self, request: GenerationRequest):  # type: ignore[no-untyped-def]
        yield await self(request)


def episode(policy: Policy, branching: Branching | None = None, max_tokens: int = 20) -> Episode:
    request = GenerationRequest("r:0", tuple(ids("1+2=")), (7,), SamplingParameters(max_tokens, min_tokens=5))
    return Episode("1+2=", {}, request, TOKENIZER, policy, None, ["reward"], branching)


async def test_a_branch_has_a_prompt_tokens_and_seeds_of_its_own() -> None:
    policy = Policy("plan", "?!", "answer")
    one_episode = episode(policy, Branching(TOKENIZER, max_sequences=3))
    await one_episode.generate()
    solver = one_episode.branch(text="<plan>")
    nested = solver.branch(tokens=ids("abc"))
    await nested.generate(max_tokens=2)
    await solver.generate()
    assert one_episode.prompt_tokens == tuple(ids("1+2="))
    assert [each.prompt for each in (one_episode, solver, nested)] == ["1+2=", "<plan>", "abc"]
    assert [each.transcript.text for each in one_episode.sequences] == ["plan", "answer", "?!"]
    assert nested.sequences == solver.sequences == one_episode.sequences == [one_episode, solver, nested]
    assert [request.prompt_tokens for request in policy.requests] == [
        tuple(ids("1+2=")),
        tuple(ids("abc")),
        tuple(ids("<plan>")),
    ]
    # No two generations share a name, by which the engine tells requests apart, or a seed.
    assert len({request.request_id for request in policy.requests}) == 3
    assert len({request.seeds for request in policy.requests}) == 3
    # A prompt of 6 tokens, where 4 + 20 fit: 18 are left.
    assert policy.requests[2].sampling.max_tokens == 18


async def test_the_first_sequence_is_generated_as_without_branches() -> None:
    alone, branching = Policy("a", "b"), Policy("a", "b")
    one_episode = episode(alone)
    await one_episode.generate()
    await one_episode.generate()
    other = episode(branching, Branching(TOKENIZER, max_sequences=2))
    other.branch(text="x")
    await other.generate()
    await other.generate()
    assert alone.requests == branching.requests


async def test_sequences_without_a_response_are_left_out() -> None:
    one_episode = episode(Policy("ab"), Branching(TOKENIZER, max_sequences=2))
    assert one_episode.sequences == []
    last = one_episode.branch(text="x")
    await last.generate()
    assert one_episode.sequences == [last]


async def test_messages_are_rendered_with_the_chat_template() -> None:
    tokenizer = train_character_tokenizer(["<>abcdefghijklmnopqrstuvwxyz"])
    tokenizer.chat_template = (
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}{{ eos_token }}{% endfor %}"
        "{{ '<' + name + '>' if add_generation_prompt else '' }}"
    )
    request = GenerationRequest("r:0", (1, 2), (7,), SamplingParameters(60))
    branching = Branching(tokenizer, 2, 10, {"name": "bot"})
    one_episode = Episode("p", {}, request, tokenizer, Policy(), branching=branching)
    end = tokenizer.eos_token
    branch = one_episode.branch(messages=[{"role": "user", "content": f"go{end}"}])
    text = branch.prompt_tokens[: -len(ids("<bot>", tokenizer))]
    assert text[-1] == tokenizer.eos_token_id
    # The end of sequence within the message is text: only the template's own one is a special token.
    assert text.count(tokenizer.eos_token_id) == 1
    assert list(branch.prompt_tokens[-5:]) == ids("<bot>", tokenizer)


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ({}, "exactly one of messages, text and tokens"),
        ({"text": "a", "tokens": [1]}, "exactly one of messages, text and tokens"),
        ({"text": ""}, "the prompt has no token"),
        ({"tokens": [4, 9999]}, "the prompt has the token 9999; those of the policy are 0 to"),
        ({"tokens": [4, -1]}, "the prompt has the token -1; those of the policy are 0 to"),
        ({"messages": [{"role": "user", "content": "a"}]}, "no chat template for messages: give a text"),
        ({"tokens": [5] * 24}, "a prompt of 24 tokens leaves no room: .* at most 24 tokens"),
    ],
)
def test_prompts_that_a_branch_cannot_have(prompt: dict[str, Any], message: str) -> None:
    one_episode = episode(Policy(), Branching(TOKENIZER, max_sequences=2))
    with pytest.raises(ValueError, match=rf"episode\.branch.*{message}"):
        one_episode.branch(**prompt)
    # The refused branch takes no place.
    one_episode.branch(tokens=[5] * 23)
    with pytest.raises(
        ValueError, match=r"has 2 of at most 2 sequences: raise rollout\.maxSequencesPerSample"
    ):
        one_episode.branch(text="a")


def test_the_longest_prompt_of_the_data_bounds_a_branch() -> None:
    one_episode = episode(Policy(), Branching(TOKENIZER, 2, longest_prompt=30))
    assert one_episode.branch(tokens=[5] * 40).room == 10


def test_an_episode_has_one_sequence_unless_the_job_allows_more() -> None:
    with pytest.raises(
        ValueError, match=r"has 1 of at most 1 sequences: raise rollout\.maxSequencesPerSample"
    ):
        episode(Policy()).branch(text="a")


ITEM = rollout_pb2.WorkItem(
    fence=7,
    group_id="0/1",
    prompt_tokens=ids("1+2="),
    samples=1,
    seeds=[3],
    sampling=rollout_pb2.Sampling(max_tokens=6, temperature=1.0, top_p=1.0),
    columns=json.dumps({"prompt": "1+2=", "columns": {}}).encode(),
    purpose="train",
)


async def plan_and_solve(one_episode: Episode) -> None:
    """Plan in the first sequence, reward both, and answer in the second, which is cut at its length."""
    await one_episode.generate()
    one_episode.reward(0.25, metrics={"moves": 1, "plans": 1}, explanation="planned")
    solver = one_episode.branch(text="ab")
    await solver.generate(max_tokens=3)
    assert solver.put("?")
    await solver.generate()
    solver.reward(1, metrics={"moves": 2})
    one_episode.reward(0.5)


def produce(
    policy: Policy, workflow: Any = plan_and_solve, transcripts: list[Transcript] | None = None
) -> rollout_pb2.Rollout:
    """Return the rollout of an episode, and append the transcript of its first sequence to `transcripts`."""
    transcripts = [] if transcripts is None else transcripts

    async def play(one_episode: Episode) -> None:
        await workflow(one_episode)
        transcripts.append(one_episode.transcript)

    branching = Branching(TOKENIZER, max_sequences=2)
    names = {"won": "reward"}
    producer = MultiTurn(policy, "w", play, TOKENIZER, names, branching)  # type: ignore[arg-type]

    async def first() -> rollout_pb2.Rollout:
        (part,) = split_into_parts(ITEM)
        (rollout,) = [rollout async for rollout in producer.make(ITEM, part)]
        return rollout

    return asyncio.run(first())


def test_a_rollout_carries_all_sequences_token_by_token() -> None:
    rollout = produce(Policy("xyz", "12", "98765"))
    batch = decode(rollout.sequence)
    assert batch.cu_seqlens.tolist() == [0, 7, 15]
    assert batch.tokens.tolist() == [*ids("1+2=xyz"), *ids("ab12?987")]
    assert batch.token("loss_mask").tolist() == [0, 0, 0, 0, 1, 1, 1, 0, 0, 1, 1, 0, 1, 1, 1]
    assert batch.token("weight_version").tolist() == [-1] * 4 + [1] * 3 + [-1] * 2 + [2, 2, -1, 3, 3, 3]
    logprobs = [0.0] * 4 + [1.0] * 3 + [0.0] * 2 + [2.0, 2.0, 0.0, 3.0, 3.0, 3.0]
    assert (batch.token("behaviour_logprobs") * -8).tolist() == logprobs
    assert (batch.token("engine_logprobs") * -4).tolist() == logprobs
    assert batch.sequence("truncated").tolist() == [0, 1]
    assert batch.sample_ids == ["0/1#0/0", "0/1#0/1"]
    # Text and end are those of the last sequence; turns and seconds those of the episode.
    assert (rollout.response, rollout.finish_reason) == ("12?987", rollout_pb2.FINISH_REASON_LENGTH)
    assert (rollout.turns, rollout.seconds) == (3, 6.0)


@given(
    turns=st.lists(st.text("0123456789", min_size=1, max_size=4), min_size=1, max_size=3),
    put=st.text("abc", max_size=2),
)
def test_an_episode_of_one_sequence_gives_the_bytes_of_a_plain_sample(turns: list[str], put: str) -> None:
    async def alternate(one_episode: Episode) -> None:
        for number in range(len(turns)):
            await one_episode.generate()
            if one_episode.room <= len(put) or number + 1 == len(turns):
                return
            assert one_episode.put(put)

    rollout = produce(Policy(*turns), alternate, transcripts := [])
    (transcript,) = transcripts
    sample = GeneratedSample(
        request_id="",
        sample=0,
        tokens=transcript.tokens,
        behaviour_logprobs=transcript.behaviour_logprobs,
        engine_logprobs=transcript.engine_logprobs,
        versions=transcript.versions,
        finish=FinishReason.LENGTH if transcript.truncated else FinishReason.STOP,
        text=transcript.text,
        seconds=transcript.seconds,
    )
    expected = to_rollout(ITEM, sample, "w", loss_mask=transcript.loss_mask)
    expected.turns = transcript.turns
    expected.episode_rewards.add(source="won")
    assert rollout.SerializeToString(deterministic=True) == expected.SerializeToString(deterministic=True)


def test_rewards_stand_at_the_tokens_of_their_own_sequence() -> None:
    (reward,) = produce(Policy("xyz", "12", "98765")).episode_rewards
    assert reward.reward == 1.75
    # The first sequence ends with token 6, the second with token 14.
    assert [(turn.token, turn.reward) for turn in reward.turns] == [(6, 0.25), (6, 0.5), (14, 1.0)]
    assert dict(reward.metrics) == {"moves": 2.0, "plans": 1.0}
    assert reward.explanation == "planned"


def test_a_changed_sequence_of_the_episode_changes_the_digest() -> None:
    digests = {produce(Policy(*texts)).sequence.digest for texts in (("xyz", "1", "9"), ("xyy", "1", "9"))}
    assert len(digests) == 2


async def test_a_custom_workflow_may_generate_in_a_branch_alone() -> None:
    async def final_only(one_episode: Episode) -> None:
        await one_episode.branch(text="ab").generate()

    async def nothing(one_episode: Episode) -> None:
        one_episode.branch(text="ab")

    branching = Branching(TOKENIZER, max_sequences=2)
    for workflow, is_allowed in ((final_only, True), (nothing, False)):
        custom = CustomWorkflow(workflow, "f")
        one_episode = episode(Policy("x"), branching)
        try:
            if is_allowed:
                await custom(one_episode)
                assert [each.transcript.text for each in one_episode.sequences] == ["x"]
            else:
                with pytest.raises(WorkflowFailed, match=r"ended without a call of episode\.generate"):
                    await custom(one_episode)
        finally:
            custom.close()
