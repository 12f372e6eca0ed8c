"""Episodes in an environment: turns, observations, rewards and the end."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from kubealign.spec.workflows.environments import EnvironmentSpec
from kubealign_services.data.tokenization.message_turns import MessageTurns
from kubealign_services.data.tokenization.tokenizers import train_character_tokenizer
from kubealign_services.environments.contract import EnvironmentFailed, Observation, StepResult
from kubealign_services.generation.contract import (
    FinishReason,
    GeneratedSample,
    GenerationRequest,
    SamplingParameters,
)
from kubealign_services.roles.rollout.workflow.contract import WorkflowFailed
from kubealign_services.roles.rollout.workflow.environment import EnvironmentWorkflow
from kubealign_services.roles.rollout.workflow.episode import Episode

CHARACTERS = "0123456789?.abcdefghijklmnopqrstuvwxyz<>\n :"
TOKENIZER = train_character_tokenizer([CHARACTERS])


def ids(text: str) -> list[int]:
    token_ids: list[int] = TOKENIZER(text, add_special_tokens=False)["input_ids"]
    return token_ids


class Policy:
    """Policy that generates given texts, each to its end or to the request's limit."""

    def __init__(self, *texts: str) -> None:
        self.texts = list(texts)
        self.requests: list[GenerationRequest] = []

    async def __call__(self, request: GenerationRequest) -> GeneratedSample:
        self.requests.append(request)
        text = self.texts.pop(0)
        stop = next((stop for stop in request.sampling.stop if text.endswith(stop)), "")
        tokens = ids(text) + ([] if stop else [TOKENIZER.eos_token_id])
        is_cut = len(tokens) > request.sampling.max_tokens
        tokens = tokens[: request.sampling.max_tokens]
        return GeneratedSample(
            request_id=request.request_id,
            sample=0,
            tokens=tokens,
            behaviour_logprobs=[-0.5] * len(tokens),
            engine_logprobs=[-0.5] * len(tokens),
            versions=[3] * len(tokens),
            finish=FinishReason.LENGTH if is_cut else FinishReason.STOP,
            text=text.removesuffix(stop)[: request.sampling.max_tokens],
        )


class Game:
    """Environment with given results, and its own source."""

    def __init__(self, first: Observation, *results: StepResult) -> None:
        self.observation = first
        self._results = list(results)
        self.actions: list[str] = []
        self.opened: list[tuple[int, dict[str, Any]]] = []
        self.is_closed = False

    @asynccontextmanager
    async def open(self, seed: int, columns: Mapping[str, Any]) -> AsyncIterator["Game"]:
        self.opened.append((seed, dict(columns)))
        try:
            yield self
        finally:
            self.is_closed = True

    async def step(self, action: str) -> StepResult:
        self.actions.append(action)
        return self._results.pop(0)


def environment(**settings: Any) -> EnvironmentSpec:
    return EnvironmentSpec.model_validate({"function": {"module": "a:B"}, **settings})


def episode(
    policy: Policy, prompt: str = "guess.", max_tokens: int = 60, seconds: float | None = None
) -> Episode:
    request = GenerationRequest("1:train:0/1:0", tuple(ids(prompt)), (7,), SamplingParameters(max_tokens))
    deadline = None if seconds is None else time.monotonic() + seconds
    one_episode = Episode(prompt, {}, request, TOKENIZER, policy, deadline, ["reward"])
    one_episode.group_seed = 99
    return one_episode


async def test_turns_and_observations_alternate_until_the_environment_is_done() -> None:
    game = Game(
        Observation(),
        StepResult("more", -0.5, metrics={"distance": 4}),
        StepResult(Observation("less"), 0.25),
        StepResult("unseen", 1, done=True, metrics={"distance": 0}),
    )
    policy = Policy("3.", "9", "7.", "never")
    one_episode = episode(policy)
    spec = environment(stop=["."], observationTemplate="<{observation}>")
    await EnvironmentWorkflow(spec, game)(one_episode)
    result = one_episode.transcript
    assert result.text == "3.<more>9<less>7."
    eos = TOKENIZER.eos_token_id
    assert result.tokens == [*ids("3.<more>9"), eos, *ids("<less>7.")]
    assert result.loss_mask == [1] * 2 + [0] * 6 + [1] * 2 + [0] * 6 + [1] * 2
    # A stop string is part of the response and not of the action.
    assert game.actions == ["3", "9", "7"]
    assert game.is_closed
    assert (result.turns, result.truncated) == (3, False)
    reward = result.rewards["reward"]
    assert reward.turns == [(2, -0.5), (10, 0.25), (18, 1.0)]
    assert reward.metrics == {"distance": 0.0}


@pytest.mark.parametrize(
    ("columns", "seed"), [({}, 99), ({"seed": 5}, 5), ({"seed": "5"}, 99), ({"seed": None}, 99)]
)
async def test_the_seed_is_the_rows_or_the_groups(columns: dict[str, Any], seed: int) -> None:
    game = Game(Observation(), StepResult(done=True))
    one_episode = episode(Policy("1"))
    one_episode.columns = columns
    await EnvironmentWorkflow(environment(), game)(one_episode)
    assert game.opened == [(seed, columns)]


async def test_limits_of_a_turn_and_of_turns() -> None:
    game = Game(Observation(), *[StepResult("more")] * 3)
    policy = Policy("123456", "9", "9")
    one_episode = episode(policy)
    await EnvironmentWorkflow(environment(maxTurns=2, maxTurnTokens=3), game)(one_episode)
    assert game.actions == ["123", "9"]
    assert one_episode.transcript.text == "123more9"
    assert [request.sampling.max_tokens for request in policy.requests] == [3, 3]
    assert not one_episode.transcript.truncated


async def test_an_environment_that_truncates_ends_the_episode() -> None:
    game = Game(Observation(), StepResult("late", 0.5, truncated=True))
    one_episode = episode(Policy("1", "2"))
    await EnvironmentWorkflow(environment(), game)(one_episode)
    assert one_episode.transcript.turns == 1
    assert one_episode.transcript.rewards["reward"].total == 0.5


async def test_a_response_without_room_is_truncated_and_its_last_turn_is_rewarded() -> None:
    cut = Game(Observation(), StepResult("more", 0.5))
    one_episode = episode(Policy("12345"), max_tokens=3)
    await EnvironmentWorkflow(environment(), cut)(one_episode)
    assert (cut.actions, one_episode.transcript.truncated) == (["123"], True)
    assert one_episode.transcript.rewards["reward"].total == 0.5
    full = Game(Observation(), StepResult("much too long", 0.5))
    one_episode = episode(Policy("1", "2"), max_tokens=10)
    await EnvironmentWorkflow(environment(), full)(one_episode)
    assert (full.actions, one_episode.transcript.truncated) == (["1"], True)
    assert one_episode.transcript.text == "1"


async def test_the_first_observation_is_inserted_or_checked() -> None:
    first = Observation("a number below 9\n")
    inserted = episode(Policy("1"))
    insert = environment(firstObservation="Insert")
    await EnvironmentWorkflow(insert, Game(first, StepResult(done=True)))(inserted)
    assert inserted.transcript.text == "a number below 9\n1"
    assert inserted.transcript.loss_mask == [0] * 17 + [1] * 2
    in_prompt = episode(Policy("1"), prompt="guess a number below 9:")
    await EnvironmentWorkflow(environment(), Game(first, StepResult(done=True)))(in_prompt)
    assert in_prompt.transcript.text == "1"
    with pytest.raises(
        WorkflowFailed, match=r"prompt does not have the first observation 'a number below 9'"
    ):
        await EnvironmentWorkflow(environment(), Game(first))(episode(Policy("1")))
    with pytest.raises(WorkflowFailed, match=r"no room for the policy: raise rollout\.sampling\.maxTokens"):
        await EnvironmentWorkflow(insert, Game(first))(episode(Policy("1"), max_tokens=17))


async def test_observations_as_messages_of_the_chat_template() -> None:
    tokenizer = train_character_tokenizer([CHARACTERS])
    tokenizer.chat_template = (
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}{{ eos_token }}{% endfor %}"
        "{{ '<assistant>' if add_generation_prompt else '' }}"
    )
    game = Game(
        Observation("guess a number"),
        StepResult("higher"),
        StepResult(Observation(messages=({"role": "tool", "content": "lower"},))),
        StepResult(done=True),
    )
    request = GenerationRequest("r", (), (7,), SamplingParameters(200))
    policy = Policy("3", "99", "5")
    one_episode = Episode("<user>guess a number<assistant>", {}, request, tokenizer, policy, None, ["reward"])
    spec = environment(observation="Chat", maxTurnTokens=2, observationTemplate="it is {observation}")
    await EnvironmentWorkflow(spec, game, MessageTurns(tokenizer, {}))(one_episode)
    tokens, mask = one_episode.transcript.tokens, one_episode.transcript.loss_mask
    shown = [tokenizer.decode(tokens[start:end]) for start, end in ((0, 2), (2, mask.index(1, 2)))]
    end = tokenizer.eos_token
    assert shown == [f"3{end}", f"<user>it is higher{end}<assistant>"]
    # The second turn was cut, so its end is the environment's.
    assert tokenizer.decode(tokens).endswith(f"99{end}<tool>lower{end}<assistant>5{end}")
    assert mask[-2:] == [1, 1]
    assert sum(mask) == 6


async def test_failures_name_the_environment_or_the_wait() -> None:
    class Broken(Game):
        async def step(self, action: str) -> StepResult:
            raise EnvironmentFailed("environment B of a step raised KeyError: 'x'")

    class Hanging(Game):
        async def step(self, action: str) -> StepResult:
            await asyncio.Event().wait()
            raise AssertionError

    broken = Broken(Observation())
    with pytest.raises(WorkflowFailed, match="environment B of a step raised KeyError"):
        await EnvironmentWorkflow(environment(), broken)(episode(Policy("1")))
    hanging = Hanging(Observation())
    with pytest.raises(
        WorkflowFailed,
        match=r"\(rollout\.groupTimeoutSeconds\); it waited for the environment's answer to turn 1",
    ):
        await EnvironmentWorkflow(environment(), hanging)(episode(Policy("1"), seconds=0.2))
    assert broken.is_closed
    assert hanging.is_closed


async def test_rewards_that_no_reward_of_the_job_takes_are_left_out() -> None:
    one_episode = episode(Policy("1"))
    await EnvironmentWorkflow(
        environment(reward="score"), Game(Observation(), StepResult(reward=1.0, done=True))
    )(one_episode)
    assert one_episode.transcript.rewards == {}
