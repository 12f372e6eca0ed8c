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
    GeneratedSample,
    GenerationRequest,
    Generator,
    RequestRefused,
)
from kubealign_services.roles.rollout.episode_messages import episode_to_rollout
from kubealign_services.roles.rollout.messages import GroupPart, to_rollout
from kubealign_services.roles.rollout.workflow.branching import Branching
from kubealign_services.roles.rollout.workflow.contract import EpisodeWorkflow
from kubealign_services.roles.rollout.workflow.episode import Episode
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
        branching: Branching | None = None,
    ) -> None:
        """Set up the producer.

        Args:
            episode_rewards: Reward of the job -> name under which episodes give it.
            branching: Limits of the sequences of an episode; None: it has one.
        """
        self._branching = branching
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
        episode = Episode(
            prompt, columns, request, self._tokenizer, self._generate, deadline, names, self._branching
        )
        episode.group_seed = xxhash.xxh3_64_intdigest(f"{item.purpose}:{item.group_id}".encode()) >> 1
        await self._workflow(episode)
        return episode_to_rollout(item, part, index, episode.sequences, self._worker, self._episode_rewards)

    async def _generate(self, request: GenerationRequest) -> GeneratedSample:
        """Generate one sample of a request."""
        async with aclosing(self._generator.generate(request)) as samples:
            async for sample in samples:
                return sample
        raise RequestRefused(f"nothing was generated for {request.request_id}")
