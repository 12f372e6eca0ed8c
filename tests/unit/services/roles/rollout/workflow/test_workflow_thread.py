"""Custom workflows that wait for ever or block their thread."""

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from kubealign_services.generation.contract import (
    EngineLost,
    FinishReason,
    GeneratedSample,
    GenerationRequest,
    SamplingParameters,
)
from kubealign_services.roles.rollout.workflow.contract import WorkflowFailed
from kubealign_services.roles.rollout.workflow.custom import CustomWorkflow
from kubealign_services.roles.rollout.workflow.episode import Episode
from kubealign_services.roles.rollout.workflow.workflow_thread import WorkflowBlocked, WorkflowThread

pytestmark = pytest.mark.timeout(30)

Make = Callable[[Callable[[Episode], Coroutine[Any, Any, None]]], CustomWorkflow]


@pytest.fixture
def make() -> Iterator[Make]:
    workflows: list[CustomWorkflow] = []

    def create(function: Callable[[Episode], Coroutine[Any, Any, None]]) -> CustomWorkflow:
        workflows.append(CustomWorkflow(function, "f of flow.py", WorkflowThread(cancel_seconds=0.2)))
        return workflows[-1]

    yield create
    for workflow in workflows:
        workflow.close()


async def generate(request: GenerationRequest) -> GeneratedSample:
    await asyncio.sleep(0)
    # The engine is not safe for several threads.
    assert threading.current_thread() is threading.main_thread()
    return GeneratedSample(
        request_id=request.request_id,
        sample=0,
        tokens=[7],
        behaviour_logprobs=[-0.1],
        engine_logprobs=[-0.30000000000000004],
        versions=[3],
        finish=FinishReason.LENGTH,
        text="a",
    )


def episode(seconds: float | None, engine: Callable[..., Any] = generate) -> Episode:
    request = GenerationRequest("1:train:0/1:0", (1, 2), (7,), SamplingParameters(8))
    deadline = None if seconds is None else time.monotonic() + seconds
    return Episode("p", {}, request, None, engine, deadline)  # type: ignore[arg-type]


async def test_a_workflow_that_waits_for_ever_is_cancelled_at_its_deadline(make: Make) -> None:
    cancelled = threading.Event()

    async def waits(episode: Episode) -> None:
        try:
            await episode.generate()
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    with pytest.raises(WorkflowFailed, match=r"f of flow\.py did not end before the deadline of its prompt"):
        await make(waits)(episode(0.2))
    # The workflow ends in a thread of its own.
    assert await asyncio.to_thread(cancelled.wait, 20)


async def test_a_deadline_that_has_passed_is_no_block(make: Make) -> None:
    async def waits(episode: Episode) -> None:
        await asyncio.Event().wait()

    with pytest.raises(WorkflowFailed, match="did not end before"):
        await make(waits)(episode(-1))


async def test_a_workflow_that_blocks_neither_stops_the_worker_nor_goes_unnoticed(make: Make) -> None:
    release = threading.Event()

    async def blocks(episode: Episode) -> None:
        release.wait(20)

    running = asyncio.create_task(make(blocks)(episode(0.2)))
    try:
        # With the workflow on this event loop neither would run before the release.
        assert (await generate(GenerationRequest("1", (1,), (7,), SamplingParameters(8)))).tokens == [7]
        with pytest.raises(WorkflowBlocked, match=r"(?s)blocked for 0\.2 s.*release\.wait\(20\)"):
            await running
        assert not release.is_set()
    finally:
        release.set()


async def test_a_workflow_that_blocks_for_a_while_has_its_exact_result(make: Make) -> None:
    async def sleeps(episode: Episode) -> None:
        await episode.generate()
        threading.Event().wait(0.01)
        await episode.generate()

    one = episode(20)
    await make(sleeps)(one)
    result = one.transcript
    assert (result.tokens, result.versions, result.turns) == ([7, 7], [3, 3], 2)
    assert result.engine_logprobs == [-0.30000000000000004] * 2
    assert result.behaviour_logprobs == [-0.1] * 2


async def test_errors_of_the_engine_pass_the_thread(make: Make) -> None:
    async def lost(request: GenerationRequest) -> GeneratedSample:
        raise EngineLost("the server has ended")

    async def generates(episode: Episode) -> None:
        await episode.generate()

    with pytest.raises(EngineLost, match="the server has ended"):
        await make(generates)(episode(20, lost))


async def test_a_cancelled_worker_cancels_its_workflows(make: Make) -> None:
    started, cancelled = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    async def waits(episode: Episode) -> None:
        loop.call_soon_threadsafe(started.set)
        try:
            await asyncio.Event().wait()
        finally:
            loop.call_soon_threadsafe(cancelled.set)

    running = asyncio.create_task(make(waits)(episode(None)))
    await started.wait()
    running.cancel()
    await asyncio.wait([running])
    await cancelled.wait()
