"""Producers of a work item's samples: in a single turn, or in several turns by a workflow."""

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Protocol

import xxhash
from transformers import PreTrainedTokenizerBase

from kubealign.v1 import rollout_pb2
from kubealign_services.generation.contract import (
    FinishReason,
    GeneratedSample,
    GenerationRequest,
    Generator,
    RequestRefused,
)
from kubealign_services.roles.rollout.messages import GroupPart, to_rollout
from kubealign_services.roles.rollout.workflow.contract import EpisodeWorkflow
from kubealign_services.roles.rollout.workflow.episode import Episode, EpisodeReward, Transcript
from kubealign_services.scoring.purposes import TRAINING, is_validation


class SampleProducer(Protocol):
    """Producer of the samples of a group's part."""

    def make(
        self, item: rollout_pb2.WorkItem, part: GroupPart, deadline: float | None = None
    ) -> AsyncGenerator[rollout_pb2.Rollout]:
        """Yield each sample as soon as it is finished.

        Args:
            deadline: time.monotonic() at which custom workflows are cancelled; None: never.

        Raises RequestRefused, WorkflowFailed.
        """


class SingleTurn:
    """Generates each response in a single turn; the group's prompt is computed once."""

    def __init__(self, generator: Generator, worker: str) -> None:
        self._generator, self._worker = generator, worker

    async def make(
        self, item: rollout_pb2.WorkItem, part: GroupPart, deadline: float | None = None
    ) -> AsyncGenerator[rollout_pb2.Rollout]:
        async with aclosing(self._generator.generate(part.request)) as samples:
            async for sample in samples:
                yield to_rollout(item, sample, self._worker, part.first_sample)


class MultiTurn:
    """Generates each response in several turns, all samples of a part concurrently."""

    def __init__(
        self,
        generator: Generator,
        worker: str,
        workflow: EpisodeWorkflow,
        tokenizer: PreTrainedTokenizerBase,
        episode_rewards: Mapping[str, str],
    ) -> None:
        """Set up the producer.

        Args:
            episode_rewards: Reward of the job -> name under which episodes give it.
        """
        self._episode_rewards = dict(episode_rewards)
        self._single_turn = SingleTurn(generator, worker)
        self._generator, self._worker = generator, worker
        self._workflow, self._tokenizer = workflow, tokenizer

    async def make(
        self, item: rollout_pb2.WorkItem, part: GroupPart, deadline: float | None = None
    ) -> AsyncGenerator[rollout_pb2.Rollout]:
        # Others (a judgement, a critique) take a single turn.
        if item.purpose != TRAINING and not is_validation(item.purpose):
            async with aclosing(self._single_turn.make(item, part)) as samples:
                async for rollout in samples:
                    yield rollout
            return
        tasks = [
            asyncio.create_task(self._run_episode(item, part, index, deadline))
            for index in range(len(part.request.seeds))
        ]
        try:
            for done in asyncio.as_completed(tasks):
                yield await done
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _run_episode(
        self, item: rollout_pb2.WorkItem, part: GroupPart, index: int, deadline: float | None
    ) -> rollout_pb2.Rollout:
        """Run the workflow of one sample."""
        request = replace(
            part.request,
            request_id=f"{part.request.request_id}:{part.first_sample + index}",
            seeds=(part.request.seeds[index],),
        )
        context = json.loads(item.columns)
        prompt, columns = context["prompt"], context["columns"]
        names = self._episode_rewards.values()
        episode = Episode(prompt, columns, request, self._tokenizer, self._generate, deadline, names)
        episode.group_seed = xxhash.xxh3_64_intdigest(f"{item.purpose}:{item.group_id}".encode()) >> 1
        await self._workflow(episode)
        rollout = episode_to_rollout(item, part, index, episode.transcript, self._worker)
        rollout.episode_rewards.extend(
            to_episode_reward(source, episode.transcript.rewards.get(name), len(item.prompt_tokens))
            for source, name in self._episode_rewards.items()
        )
        return rollout

    async def _generate(self, request: GenerationRequest) -> GeneratedSample:
        """Generate one sample of a request."""
        async with aclosing(self._generator.generate(request)) as samples:
            async for sample in samples:
                return sample
        raise RequestRefused(f"nothing was generated for {request.request_id}")


def to_episode_reward(
    source: str, reward: EpisodeReward | None, prompt_tokens: int
) -> rollout_pb2.EpisodeReward:
    """Return the message of a reward that a workflow has given; None: it has given none.

    Args:
        source: Name of the job's reward.
    """
    if reward is None:
        return rollout_pb2.EpisodeReward(source=source)
    return rollout_pb2.EpisodeReward(
        source=source,
        reward=reward.total,
        turns=[
            rollout_pb2.TurnReward(token=prompt_tokens + position - 1, reward=value)
            for position, value in reward.turns
        ],
        metrics=reward.metrics,
        explanation=reward.explanation,
    )


def episode_to_rollout(
    item: rollout_pb2.WorkItem, part: GroupPart, index: int, transcript: Transcript, worker: str
) -> rollout_pb2.Rollout:
    """Return the message of a transcript."""
    sample = GeneratedSample(
        request_id=part.request.request_id,
        sample=index,
        tokens=transcript.tokens,
        behaviour_logprobs=transcript.behaviour_logprobs,
        engine_logprobs=transcript.engine_logprobs,
        versions=transcript.versions,
        finish=FinishReason.LENGTH if transcript.truncated else FinishReason.STOP,
        text=transcript.text,
        seconds=transcript.seconds,
        routing=transcript.routing,
    )
    rollout = to_rollout(item, sample, worker, part.first_sample, transcript.loss_mask)
    rollout.turns, rollout.tool_errors = transcript.turns, transcript.tool_errors
    return rollout
