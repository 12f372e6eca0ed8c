"""Rewards that a workflow gives its response, from the episode to the batch."""

import asyncio
import json
import math

import pytest

from kubealign.v1 import rollout_pb2
from kubealign_services.batch.codec import decode
from kubealign_services.data.tokenization.tokenizers import train_character_tokenizer
from kubealign_services.generation.contract import (
    FinishReason,
    GeneratedSample,
    GenerationRequest,
    SamplingParameters,
)
from kubealign_services.roles.driver.errors import UnrecoverableError
from kubealign_services.roles.driver.rollouts.batch_assembly import SamplingInfo, assemble_batch
from kubealign_services.roles.driver.rollouts.group_tracker import GroupTracker, RolloutGroup
from kubealign_services.roles.rollout.messages import split_into_parts
from kubealign_services.roles.rollout.sample_producers import MultiTurn
from kubealign_services.roles.rollout.workflow.episode import Episode

TOKENIZER = train_character_tokenizer(["0123456789+=?abcdefghijklmnopqrstuvwxyz"])


async def two_letters(request: GenerationRequest) -> GeneratedSample:
    """Return the response "ab" to every request."""
    return GeneratedSample(
        request_id=request.request_id,
        sample=0,
        tokens=TOKENIZER("ab", add_special_tokens=False)["input_ids"],
        behaviour_logprobs=[-0.5, -0.5],
        engine_logprobs=[-0.5, -0.5],
        versions=[3, 3],
        finish=FinishReason.STOP,
        text="ab",
    )


class LettersOnly:
    """Generator whose every sample is "ab"."""

    async def generate(self, request: GenerationRequest):  # type: ignore[no-untyped-def]
        yield await two_letters(request)


def episode(*names: str) -> Episode:
    request = GenerationRequest("r", (5, 6, 7), (7,), SamplingParameters(20))
    return Episode("p", {}, request, TOKENIZER, two_letters, None, names)


async def test_values_of_a_name_add_up_and_remember_where_they_were_given() -> None:
    one_episode = episode("reward", "style")
    await one_episode.generate()
    one_episode.reward(0.25)
    one_episode.put("???")
    one_episode.reward(-1)
    await one_episode.generate()
    one_episode.reward(2, explanation="won", metrics={"moves": 7})
    one_episode.reward(0.5, "style")
    rewards = one_episode.transcript.rewards
    # a b ? ? ? a b: the inserted text is not the policy's, so the second reward belongs to the first b too
    assert rewards["reward"].turns == [(2, 0.25), (2, -1.0), (7, 2.0)]
    assert rewards["reward"].total == 1.25
    assert rewards["reward"].metrics == {"moves": 7.0}
    assert rewards["reward"].explanation == "won"
    assert rewards["style"].turns == [(7, 0.5)]


async def test_a_later_explanation_replaces_an_earlier_one_and_none_keeps_it() -> None:
    one_episode = episode("reward")
    await one_episode.generate()
    one_episode.reward(1, explanation="first", metrics={"moves": 1, "lost": 0})
    one_episode.reward(1, explanation="second", metrics={"moves": 2})
    one_episode.reward(1)
    entry = one_episode.transcript.rewards["reward"]
    assert (entry.explanation, entry.metrics) == ("second", {"moves": 2.0, "lost": 0.0})


@pytest.mark.parametrize(
    ("value", "name", "metrics", "message"),
    [
        (1.0, "style", None, "no reward of the job takes 'style' from episodes; the names are reward"),
        (math.nan, "reward", None, "episode.reward: the workflow returned nan"),
        (None, "reward", None, "a reward is a number, not None"),
        ("good", "reward", None, "'good' .str."),
        (1.0, "reward", {"mean": 1.0}, "is none of .*mean"),
    ],
)
async def test_a_reward_that_cannot_be_taken_is_refused(
    value: float, name: str, metrics: dict[str, float] | None, message: str
) -> None:
    one_episode = episode("reward")
    await one_episode.generate()
    with pytest.raises(ValueError, match=message):
        one_episode.reward(value, name, metrics=metrics)
    assert one_episode.transcript.rewards == {}


async def test_a_reward_before_the_first_turn_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing is generated yet"):
        episode("reward").reward(1.0)
    with pytest.raises(ValueError, match=r"the names are none: add one to spec\.rewards"):
        episode().reward(1.0)


async def game(one_episode: Episode) -> None:
    """Give a reward after each of two turns, and another one only where the prompt says so."""
    await one_episode.generate()
    one_episode.reward(0.5)
    one_episode.put("?")
    await one_episode.generate()
    one_episode.reward(1, metrics={"moves": 2}, explanation="won in two moves")
    if one_episode.columns["styled"]:
        one_episode.reward(3, "style")


def item(group_id: str, styled: bool) -> rollout_pb2.WorkItem:
    return rollout_pb2.WorkItem(
        fence=7,
        group_id=group_id,
        prompt_tokens=[5, 6, 7],
        samples=1,
        seeds=[1],
        sampling=rollout_pb2.Sampling(max_tokens=20, temperature=1.0, top_p=1.0),
        columns=json.dumps({"prompt": "p", "columns": {"styled": styled}}).encode(),
        purpose="train",
    )


async def play(*items: rollout_pb2.WorkItem) -> list[rollout_pb2.Rollout]:
    names = {"won": "reward", "style": "style"}
    producer = MultiTurn(LettersOnly(), "w", game, TOKENIZER, names)  # type: ignore[arg-type]
    return [
        rollout
        for each in items
        for part in split_into_parts(each)
        async for rollout in producer.make(each, part)
    ]


def test_rewards_travel_with_their_rollout_into_the_batch() -> None:
    rollouts = asyncio.run(play(item("0/1", styled=True), item("0/2", styled=False)))
    tracker = GroupTracker(7, "train", ("won", "style"))
    for rollout in rollouts:
        tracker.add(RolloutGroup(rollout.group_id, 1, min_version=0, deadline=10.0, requested_at=0.0))
        assert tracker.add_rollout(rollout, now=1.0) is None
    groups = tracker.list_complete()
    assert [group.group_id for group in groups] == ["0/1", "0/2"]
    first = groups[0]
    assert first.score(0, "won").metrics == {"moves": 2.0}
    assert first.explanations() == {0: {"won": "won in two moves"}}
    batch = assemble_batch(groups, ["won", "style"], SamplingInfo(1.0, 20), 3, reference=None)
    assert batch.sequence("reward.won").tolist() == [1.5, 1.5]
    assert batch.sequence("reward.style").tolist() == [3.0, 0.0]
    assert batch.sequence("applies.style").tolist() == [1, 0]
    # Three tokens of the prompt, then a b ? a b, in each of the two sequences.
    won = [0, 0, 0, 0, 0.5, 0, 0, 1]
    assert batch.token("turn_reward.won").tolist() == won * 2
    assert batch.token("turn_end.won").tolist() == [int(reward > 0) for reward in won] * 2
    assert batch.token("turn_reward.style").tolist() == [0] * 7 + [3] + [0] * 8
    assert batch.token("loss_mask").tolist() == [0, 0, 0, 1, 1, 0, 1, 1] * 2


def test_a_reward_beyond_its_sequence_is_an_error_that_names_the_worker() -> None:
    (rollout,) = asyncio.run(play(item("0/1", styled=False)))
    rollout.episode_rewards[0].turns[0].token = len(decode(rollout.sequence).tokens)
    tracker = GroupTracker(7, "train", ("won", "style"))
    tracker.add(RolloutGroup("0/1", 1, min_version=0, deadline=10.0, requested_at=0.0))
    tracker.add_rollout(rollout, now=1.0)
    with pytest.raises(UnrecoverableError, match="w gave a reward won at token 8 of a sequence of 8 tokens"):
        assemble_batch(tracker.list_complete(), ["won"], SamplingInfo(1.0, 20), 3, reference=None)
