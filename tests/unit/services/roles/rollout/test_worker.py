"""Rollout worker over a bus that delivers one item twice, with a scripted engine."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from torch import Tensor

from kubealign.spec.sections.rollout import InFlightPolicy
from kubealign.v1 import rollout_pb2
from kubealign_services.generation.contract import (
    EngineLoad,
    EngineLost,
    FinishReason,
    GeneratedSample,
    GenerationRequest,
    RequestRefused,
)
from kubealign_services.messaging.contract import Delivery
from kubealign_services.messaging.memory import MemoryBus
from kubealign_services.roles.rollout.generator import SteppedGenerator
from kubealign_services.roles.rollout.messages import GroupPart
from kubealign_services.roles.rollout.worker import RolloutWorker
from kubealign_services.roles.rollout.workflow.contract import WorkflowFailed
from support.recorded_spans import parent_of, record_spans

pytestmark = pytest.mark.timeout(30)


class Engine:
    """Finishes one waiting sample per step while `may_finish` is set."""

    version = 0

    def __init__(self) -> None:
        self.waiting: deque[tuple[str, int]] = deque()
        self.asked: list[str] = []
        self.may_finish: Callable[[int], bool] = lambda finished: True
        self.finished_count = 0

    def add(self, request: GenerationRequest) -> None:
        if request.request_id in {identity for identity, _ in self.waiting}:
            raise RequestRefused("it is here already")
        self.asked.append(request.request_id)
        self.waiting += [(request.request_id, sample) for sample in range(len(request.seeds))]

    def abort(self, request_id: str) -> None:
        self.waiting = deque(one for one in self.waiting if one[0] != request_id)

    def step(self) -> list[GeneratedSample]:
        if not self.waiting or not self.may_finish(self.finished_count):
            return []
        self.finished_count += 1
        request_id, sample = self.waiting.popleft()
        return [
            GeneratedSample(
                request_id=request_id,
                sample=sample,
                tokens=[9],
                behaviour_logprobs=[0.0],
                engine_logprobs=[0.0],
                versions=[0],
                finish=FinishReason.STOP,
                text="a",
            )
        ]

    def load(self) -> EngineLoad:
        return EngineLoad(running=len(self.waiting))

    def refit(
        self,
        tensors: Iterable[tuple[str, Tensor]],
        version: int,
        in_flight: InFlightPolicy = InFlightPolicy.DRAIN,
    ) -> None:
        raise AssertionError("nothing is refitted here")

    def sequence_logprobs(self, tokens: list[int]) -> list[float]:
        raise AssertionError("nothing is refitted here")


class Fitted:
    """Weights that are always available."""

    async def wait_for_version(self, fence: int, version: int, timeout: float) -> None:
        return

    async def wait_until_released(self) -> None:
        return


async def compute(function: Callable[..., Any], *arguments: Any) -> Any:
    await asyncio.sleep(0)
    return function(*arguments)


@asynccontextmanager
async def working(bus: MemoryBus, engine: Engine) -> AsyncIterator[None]:
    generator = SteppedGenerator(engine, compute)
    worker = RolloutWorker("rollout-7", bus, generator, Fitted(), capacity=64)  # type: ignore[arg-type]
    tasks = [asyncio.create_task(generator.run()), asyncio.create_task(worker.run())]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def samples(bus: MemoryBus, count: int) -> list[rollout_pb2.Rollout]:
    rollouts: list[rollout_pb2.Rollout] = []
    while len(rollouts) < count:
        for delivery in await bus.pull("rollouts", "driver", 8, 5.0):
            await delivery.ack()
            rollouts.append(rollout_pb2.Rollout.FromString(delivery.data))
    return rollouts


async def test_a_second_delivery_is_not_generated_twice() -> None:
    """The bus has lost the item and the first of its samples; the driver requests it again while the worker
    still generates.
    """
    bus, engine = MemoryBus(), Engine()
    other = bus.new_connection()
    item = work_item()
    item.deadline = time.time() + 60
    engine.may_finish = lambda finished: finished < 1
    async with working(bus, engine):
        await other.publish("work", item.SerializeToString(), "1")
        assert [rollout.sample for rollout in await samples(other, 1)] == [0]
        await bus.simulate_data_loss()
        await other.publish("work", item.SerializeToString(), "1")
        await asyncio.sleep(0.1)
        engine.may_finish = lambda finished: True
        rollouts = await samples(other, 2)
        assert sorted(rollout.sample for rollout in rollouts) == [0, 1], "the lost sample has come again"
        assert {rollout.finish_reason for rollout in rollouts} == {rollout_pb2.FINISH_REASON_STOP}
        assert engine.asked == ["1:train:0/3:0"]
        assert await other.pull("rollouts", "driver", 8, 0.2) == []
    assert await other.pull("work", "rollout", 8, 0.0) == [], "both copies are settled"


class HalfFailing:
    """Producer of a first sample, and of an error for the rest of the group."""

    async def make(
        self, item: rollout_pb2.WorkItem, part: GroupPart, deadline: float | None = None
    ) -> AsyncGenerator[rollout_pb2.Rollout]:
        yield rollout_pb2.Rollout(
            fence=item.fence,
            group_id=item.group_id,
            purpose=item.purpose,
            finish_reason=rollout_pb2.FINISH_REASON_STOP,
        )
        raise WorkflowFailed("the environment was lost")


async def test_a_group_that_fails_after_its_first_sample_is_reported() -> None:
    bus, engine = MemoryBus(), Engine()
    generator = SteppedGenerator(engine, compute)
    weights: Any = Fitted()
    worker = RolloutWorker("rollout-7", bus, generator, weights, capacity=64, samples=HalfFailing())
    item = work_item()
    item.deadline = time.time() + 60
    task = asyncio.create_task(worker.run())
    try:
        await bus.publish("work", item.SerializeToString(), "1")
        async with asyncio.timeout(20):
            rollouts = await samples(bus.new_connection(), 2)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert [rollout.error for rollout in rollouts] == ["", "the environment was lost"]


class Dying(SteppedGenerator):
    """Generator whose server dies during the first group."""

    deaths = 1

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[GeneratedSample]:
        if self.deaths:
            self.deaths -= 1
            raise EngineLost("the server was killed")
        async for sample in super().generate(request):
            yield sample


async def test_items_of_a_lost_engine_are_returned_and_processed_again() -> None:
    """The same worker processes it again and continues."""
    bus, engine = MemoryBus(), Engine()
    other = bus.new_connection()
    item = rollout_pb2.WorkItem(
        fence=1,
        group_id="0/3",
        prompt_tokens=[1],
        samples=2,
        seeds=[1, 2],
        sampling=rollout_pb2.Sampling(max_tokens=4, temperature=1.0, top_p=1.0),
        deadline=time.time() + 60,
        purpose="train",
    )
    generator = Dying(engine, compute)
    worker = RolloutWorker("rollout-7", bus, generator, Fitted(), capacity=64)  # type: ignore[arg-type]
    tasks = [asyncio.create_task(generator.run()), asyncio.create_task(worker.run())]
    await other.publish("work", item.SerializeToString(), "1")
    rollouts = await samples(other, 2)
    assert sorted(rollout.sample for rollout in rollouts) == [0, 1]
    assert generator.deaths == 0
    for task in tasks:
        assert not task.done()
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize("skew", [-7200.0, 7200.0])
async def test_the_clock_of_the_driver_does_not_decide_on_a_deadline(skew: float) -> None:
    """Check a driver two hours behind or ahead: the worker dropped every item of the first without a word."""
    bus, engine = MemoryBus(), Engine()
    item = work_item()
    item.deadline, item.remaining_seconds = time.time() + skew, 60.0
    async with working(bus, engine):
        await bus.publish("work", item.SerializeToString(), "1")
        assert len(await samples(bus.new_connection(), 2)) == 2


@pytest.mark.parametrize("has_remaining_seconds", [True, False])
async def test_expired_items_are_counted(has_remaining_seconds: bool) -> None:
    """Check items of a driver of an earlier version as well, which have a Unix time only."""
    bus, engine = MemoryBus(), Engine()
    item = work_item()
    item.deadline = time.time() + (60.0 if has_remaining_seconds else -1.0)
    if has_remaining_seconds:
        item.remaining_seconds = 0.05
    await bus.publish("work", item.SerializeToString(), "1")
    # The time on the bus counts.
    await asyncio.sleep(0.1)
    worker = RolloutWorker("rollout-7", bus, SteppedGenerator(engine, compute), Fitted(), capacity=64)  # type: ignore[arg-type]
    skipped: asyncio.Queue[str] = asyncio.Queue()
    worker.on_skip = skipped.put_nowait
    task = asyncio.create_task(worker.run())
    try:
        assert await skipped.get() == "expired"
        assert not engine.asked
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


_PARENT = "0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331"
_TRACED = {"traceparent": f"00-{_PARENT}-01"}


class CountedPulls(MemoryBus):
    """Bus that counts the work items that its worker has pulled."""

    def __init__(self) -> None:
        super().__init__()
        self.pulled_items = asyncio.Semaphore(0)

    async def pull(self, subject: str, consumer: str, count: int, timeout: float) -> list[Delivery]:
        deliveries = await super().pull(subject, consumer, count, timeout)
        for _ in deliveries if subject == "work" else ():
            self.pulled_items.release()
        return deliveries


async def pull_headers(bus: MemoryBus, count: int) -> list[dict[str, str]]:
    """Return the headers of the next samples, which stay on the bus."""
    headers: list[dict[str, str]] = []
    while len(headers) < count:
        headers += [dict(delivery.headers) for delivery in await bus.pull("rollouts", "auditor", 8, 5.0)]
    return headers


async def test_a_traced_item_has_a_span(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check its parent and numbers, and that its samples name that parent, also those published again."""
    recorder = record_spans(monkeypatch)
    bus, engine = CountedPulls(), Engine()
    other = bus.new_connection()
    item = work_item()
    item.deadline, item.attempt = time.time() + 60, 1
    engine.may_finish = lambda finished: finished < 1
    async with working(bus, engine):
        await other.publish("work", item.SerializeToString(), "1", _TRACED)
        assert await pull_headers(other, 1) == [_TRACED]
        await bus.simulate_data_loss()
        await other.publish("work", item.SerializeToString(), "1", _TRACED)
        for _ in range(2):
            await bus.pulled_items.acquire()
        engine.may_finish = lambda finished: True
        assert await pull_headers(other, 2) == [_TRACED, _TRACED]
    (span,) = recorder.named("Generate")
    assert parent_of(span) == _PARENT and span.kind.name == "CONSUMER" and span.status.is_unset
    assert {key: value for key, value in (span.attributes or {}).items() if key.startswith("kubealign.")} == {
        "kubealign.fence": 1,
        "kubealign.purpose": "train",
        "kubealign.attempt": 1,
        "kubealign.prompts": 1,
        "kubealign.prompt_tokens": 1,
        "kubealign.samples": 2,
        "kubealign.tokens": 2,
        "kubealign.weights_version": 0,
    }
    assert [event.name for event in span.events] == ["weights ready"]


@pytest.mark.parametrize("headers", [None, {"traceparent": "not-a-trace"}, {"Traceparent": "x"}])
async def test_an_item_without_a_trace_is_generated_without_a_span(
    headers: dict[str, str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = record_spans(monkeypatch)
    bus, engine = MemoryBus(), Engine()
    item = work_item()
    item.deadline = time.time() + 60
    async with working(bus, engine):
        await bus.publish("work", item.SerializeToString(), "1", headers)
        assert await pull_headers(bus.new_connection(), 2) == [{}, {}]
    assert recorder.exporter.get_finished_spans() == ()


async def test_each_delivery_of_an_item_has_a_span_and_a_failed_one_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recorder = record_spans(monkeypatch)
    bus, engine = MemoryBus(), Engine()
    item = work_item()
    item.deadline = time.time() + 60
    generator = Dying(engine, compute)
    worker = RolloutWorker("rollout-7", bus, generator, Fitted(), capacity=64)  # type: ignore[arg-type]
    tasks = [asyncio.create_task(generator.run()), asyncio.create_task(worker.run())]
    try:
        await bus.publish("work", item.SerializeToString(), "1", _TRACED)
        assert await pull_headers(bus.new_connection(), 2) == [_TRACED, _TRACED]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    lost, again = recorder.named("Generate")
    assert parent_of(lost) == parent_of(again) == _PARENT
    assert (lost.status.status_code.name, (lost.attributes or {})["error.type"]) == ("ERROR", "EngineLost")
    assert "killed" not in lost.to_json()
    assert again.status.is_unset


async def test_refused_and_expired_items_have_failed_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = record_spans(monkeypatch)
    bus, engine = MemoryBus(), Engine()
    refused, expired = work_item(), work_item()
    # The engine has a request of this name already.
    engine.waiting.append(("1:train:0/3:0", 0))
    refused.deadline = time.time() + 60
    expired.group_id, expired.deadline = "0/4", time.time() - 1
    engine.may_finish = lambda finished: False
    async with working(bus, engine):
        await bus.publish("work", expired.SerializeToString(), "1", _TRACED)
        await bus.publish("work", refused.SerializeToString(), "2", _TRACED)
        (failed,) = await samples(bus.new_connection(), 1)
        assert failed.finish_reason == rollout_pb2.FINISH_REASON_FAILED
    spans = recorder.named("Generate")
    assert [span.status.status_code.name for span in spans] == ["ERROR", "ERROR"]
    assert {(span.attributes or {})["error.type"] for span in spans} == {"expired", "RequestRefused"}
    assert {(span.attributes or {}).get("kubealign.skipped") for span in spans} == {"expired", None}


def work_item() -> rollout_pb2.WorkItem:
    return rollout_pb2.WorkItem(
        fence=1,
        group_id="0/3",
        prompt_tokens=[1],
        samples=2,
        seeds=[1, 2],
        sampling=rollout_pb2.Sampling(max_tokens=4, temperature=1.0, top_p=1.0),
        purpose="train",
    )
