"""Agent server of the rollout worker with a scripted policy, for tests with the real client library."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from openai import AsyncOpenAI
from transformers import PreTrainedTokenizerBase

from kubealign.agents.contract import AgentClient
from kubealign.spec.workflows.agents import OtherSampling
from kubealign.spec.workflows.tool_calls import ToolCallFormat
from kubealign_services.generation.contract import (
    FinishReason,
    GeneratedSample,
    GenerationRequest,
    SamplingParameters,
)
from kubealign_services.roles.rollout.agents.conversations import Conversations
from kubealign_services.roles.rollout.agents.server import AgentServer
from kubealign_services.roles.rollout.agents.session import AgentSession
from kubealign_services.roles.rollout.workflow.branching import Branching
from kubealign_services.roles.rollout.workflow.episode import Episode


class ScriptedPolicy:
    """Policy that generates given turns in order: texts, or ids; each text ends with `end`.

    Weight versions count the turns from 1.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, *turns: str | Sequence[int], end: str = "<|im_end|>"
    ) -> None:
        self._tokenizer, self._turns, self._end = tokenizer, list(turns), end
        self.requests: list[GenerationRequest] = []

    async def __call__(self, request: GenerationRequest) -> GeneratedSample:
        self.requests.append(request)
        turn = self._turns.pop(0)
        stop = ""
        if isinstance(turn, str):
            stop = next((each for each in request.sampling.stop if turn.endswith(each)), "")
            turn = self._tokenizer(turn + ("" if stop else self._end), add_special_tokens=False)["input_ids"]
        tokens = list(turn)[: request.sampling.max_tokens]
        text = str(self._tokenizer.decode(tokens, skip_special_tokens=True))
        return GeneratedSample(
            request_id=request.request_id,
            sample=0,
            tokens=tokens,
            behaviour_logprobs=[-0.25 * (index + 1) for index in range(len(tokens))],
            engine_logprobs=[-0.5] * len(tokens),
            versions=[len(self.requests)] * len(tokens),
            finish=FinishReason.LENGTH if len(tokens) < len(turn) else FinishReason.STOP,
            text=text.removesuffix(stop),
        )


def make_episode(
    tokenizer: PreTrainedTokenizerBase,
    policy: Any,
    prompt: Sequence[int],
    *,
    max_tokens: int = 200,
    max_sequences: int = 1,
) -> Episode:
    """Return the episode of a row; one sequence more than the agent's may begin."""
    request = GenerationRequest("1:train:0/1:0", tuple(prompt), (7,), SamplingParameters(max_tokens))
    return Episode(
        str(tokenizer.decode(list(prompt))),
        {},
        request,
        tokenizer,
        policy,
        reward_names=["reward"],
        branching=Branching(tokenizer, max_sequences + 1, 200),
    )


@asynccontextmanager
async def serve_episode(
    episode: Episode,
    tokenizer: PreTrainedTokenizerBase,
    *,
    max_sequences: int = 1,
    other: OtherSampling = OtherSampling.REFUSE,
    variables: Mapping[str, Any] | None = None,
) -> AsyncIterator[tuple[AsyncOpenAI, AgentSession, AgentClient]]:
    """Serve a session of the episode; yield (client, session, access)."""
    conversations = Conversations(tokenizer, variables or {}, ToolCallFormat.AUTO)
    session = AgentSession(episode, conversations, max_sequences, other)
    async with (
        AgentServer() as server,
        server.open(session) as access,
        AsyncOpenAI(base_url=access.base_url, api_key=access.api_key, max_retries=0) as client,
    ):
        yield client, session, access
