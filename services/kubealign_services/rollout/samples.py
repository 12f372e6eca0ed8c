"""Producers of a work item's samples: in a single turn, or in several turns by a workflow."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from typing import Protocol

from transformers import PreTrainedTokenizerBase

from kubealign.v1 import rollout_pb2
from kubealign_services.generation.contract import (
    Finish,
    GeneratedSample,
    GenerationRequest,
    Generator,
    RequestRefused,
)
from kubealign_services.rollout.messages import Part, rollout_of
from kubealign_services.rollout.workflow.contract import Workflow
from kubealign_services.rollout.workflow.episode import Episode, Transcript

#: Purposes whose samples a workflow generates; others (a judgement, a critique) take a single turn.
_EPISODES = frozenset({"train", "validation"})


class Samples(Protocol):
    """Producer of the samples of a group's part."""

    def make(self, item: rollout_pb2.WorkItem, part: Part) -> AsyncGenerator[rollout_pb2.Rollout]:
        """Yield each sample as soon as it is finished. Raises RequestRefused, WorkflowFailed."""


class AtOnce:
    """Generates each response in a single turn; the group's prompt is computed once."""

    def __init__(self, generator: Generator, worker: str) -> None:
        self._generator, self._worker = generator, worker

    async def make(self, item: rollout_pb2.WorkItem, part: Part) -> AsyncGenerator[rollout_pb2.Rollout]:
        async with aclosing(self._generator.generate(part.request)) as samples:
            async for sample in samples:
                yield rollout_of(item, sample, self._worker, part.first)


class ByWorkflow:
    """Generates each response in several turns, all samples of a part concurrently."""

    def __init__(
        self, generator: Generator, worker: str, workflow: Workflow, tokenizer: PreTrainedTokenizerBase
    ) -> None:
        self._at_once = AtOnce(generator, worker)
        self._generator, self._worker = generator, worker
        self._workflow, self._tokenizer = workflow, tokenizer

    async def make(self, item: rollout_pb2.WorkItem, part: Part) -> AsyncGenerator[rollout_pb2.Rollout]:
        if item.purpose not in _EPISODES:
            async with aclosing(self._at_once.make(item, part)) as samples:
                async for rollout in samples:
                    yield rollout
            return
        tasks = [
            asyncio.create_task(self._one(item, part, index)) for index in range(len(part.request.seeds))
        ]
        try:
            for done in asyncio.as_completed(tasks):
                yield await done
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _one(self, item: rollout_pb2.WorkItem, part: Part, place: int) -> rollout_pb2.Rollout:
        """Run the workflow of one sample."""
        request = replace(
            part.request,
            request_id=f"{part.request.request_id}:{part.first + place}",
            seeds=(part.request.seeds[place],),
        )
        context = json.loads(item.columns)
        episode = Episode(context["prompt"], context["columns"], request, self._tokenizer, self._generate)
        await self._workflow(episode)
        return episode_rollout(item, part, place, episode.transcript, self._worker)

    async def _generate(self, request: GenerationRequest) -> GeneratedSample:
        """Generate one sample of a request."""
        async with aclosing(self._generator.generate(request)) as samples:
            async for sample in samples:
                return sample
        raise RequestRefused(f"nothing was generated for {request.request_id}")


def episode_rollout(
    item: rollout_pb2.WorkItem, part: Part, place: int, said: Transcript, worker: str
) -> rollout_pb2.Rollout:
    """Return the message of a transcript."""
    sample = GeneratedSample(
        request_id=part.request.request_id,
        sample=place,
        tokens=said.tokens,
        behaviour_logprobs=said.behaviour_logprobs,
        engine_logprobs=said.engine_logprobs,
        versions=said.versions,
        finish=Finish.LENGTH if said.truncated else Finish.STOP,
        text=said.text,
        seconds=said.seconds,
    )
    rollout = rollout_of(item, sample, worker, part.first, said.learned)
    rollout.turns, rollout.tool_errors = said.turns, said.tool_errors
    return rollout
