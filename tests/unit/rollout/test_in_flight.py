"""What becomes of responses in the making at a refit: a rollout worker with a real engine and a real
receiver, on a bus within the process."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from kubealign.spec.engines import TorchEngine as EngineSpec
from kubealign.spec.precision import Precision
from kubealign.spec.rollout import InFlight, Transport
from kubealign.v1 import refit_pb2, rollout_pb2
from kubealign_services.batch.codec import decode
from kubealign_services.bus.memory import MemoryBus
from kubealign_services.generation.contract import EngineLost, GeneratedSample
from kubealign_services.generation.torch_engine.engine import TorchEngine
from kubealign_services.refit.canary import Canary
from kubealign_services.refit.publisher import WeightsPublisher
from kubealign_services.refit.receiver import WeightsReceiver
from kubealign_services.refit.worker import RefitWorker
from kubealign_services.rollout import worker as rollout_worker
from kubealign_services.rollout.generator import SteppedGenerator
from kubealign_services.rollout.worker import RolloutWorker
from support.engine_contract import VOCABULARY, generated, group, plain_logprobs, weights, write_model

pytestmark = pytest.mark.timeout(60)

SAMPLES = 4


async def nobody(*asked: Any) -> Any:
    raise AssertionError("shared memory is enough here")
    yield


class Paced:
    """Runs the engine on the one thread that computes: steps once it may, `stuck` never to an end."""

    def __init__(self) -> None:
        self.may_step = asyncio.Event()
        self.steps = 0
        self.stuck = ""
        self._turn = asyncio.Lock()

    async def __call__(self, function: Callable[..., Any], *arguments: Any) -> Any:
        if function.__name__ == self.stuck:
            await asyncio.Event().wait()
        if function.__name__ == "_advance":
            await self.may_step.wait()
            self.steps += 1
        async with self._turn:
            await asyncio.sleep(0)
            return function(*arguments)

    async def more(self, steps: int) -> None:
        """Let the step under way end, if there is one, and so many more be made; then none, unless they were
        let free before."""
        until, free = self.steps + steps, self.may_step.is_set()
        self.may_step.set()
        await asyncio.sleep(0)
        while self.steps < until:  # noqa: ASYNC110
            await asyncio.sleep(0)
        if not free:
            self.may_step.clear()


class Stage:
    """One worker, and the trainer's side of its refits."""

    def __init__(self, folder: Path, in_flight: InFlight, timeout: float = 10.0) -> None:
        self.bus = MemoryBus()
        self.other = self.bus.another()
        self.compute = Paced()
        engine = TorchEngine.create(write_model(folder), EngineSpec(max_sequences=8))
        self.generator = SteppedGenerator(engine, self.compute)
        self.publisher = WeightsPublisher(folder / "memory", None, Transport.SHARED_MEMORY)
        self.canary = Canary.choose(1, VOCABULARY, [Precision.FLOAT32])
        receiver = WeightsReceiver(folder / "memory", nobody, timeout)
        self.refit = RefitWorker("w", self.bus, receiver, self.generator, timeout, in_flight)
        self.worker = RolloutWorker("w", self.bus, self.generator, self.refit, capacity=8)

    async def announce(self, version: int, wrong: float = 0.0) -> None:
        """wrong: nats that the canary's log-probabilities are off by."""
        tokens = self.canary.tokens
        true = plain_logprobs(version, tokens[:1], tokens[1:])
        announcement = self.publisher.publish(
            fence=1,
            version=version,
            tensors=iter(weights(version).items()),
            canary=self.canary.message([value + wrong for value in true]),
        )
        await self.other.publish("refit", announcement.SerializeToString(), f"refit {version} {wrong}")

    async def acknowledged(self) -> refit_pb2.RefitAcknowledgement:
        """A refit waits for the step under way, which may end now and then."""
        asked = asyncio.create_task(self.other.pull("refit-acks", "driver", 1, 10.0))
        while not (await asyncio.wait([asked], timeout=0.01))[0]:
            await self.compute.more(0)
        (delivery,) = asked.result()
        await delivery.ack()
        return refit_pb2.RefitAcknowledgement.FromString(delivery.data)

    async def ask(self, group_id: str, tokens: int, min_version: int = 1) -> None:
        item = rollout_pb2.WorkItem(
            fence=1,
            group_id=group_id,
            prompt_tokens=[1, 2, 3],
            samples=SAMPLES,
            seeds=range(SAMPLES),
            sampling=rollout_pb2.Sampling(max_tokens=tokens, min_tokens=tokens, temperature=1.0, top_p=1.0),
            min_version=min_version,
            deadline=time.time() + 60,
            purpose="train",
        )
        await self.other.publish("work", item.SerializeToString(), group_id)

    async def rollouts(self, count: int) -> dict[tuple[str, int], list[int]]:
        """(group, sample) -> the version of each of its tokens."""
        found: dict[tuple[str, int], list[int]] = {}
        while len(found) < count:
            for delivery in await self.other.pull("rollouts", "driver", 8, 10.0):
                await delivery.ack()
                rollout = rollout_pb2.Rollout.FromString(delivery.data)
                part = decode(rollout.sequence)
                own = part.token("weight_version")[part.token("loss_mask").bool()]
                found[rollout.group_id, rollout.sample] = own.tolist()
        return found

    async def running(self, samples: int) -> None:
        """So many sequences run, and have made a few tokens each."""
        while self.generator.load.running < samples:
            await self.compute.more(1)
        await self.compute.more(3)


@asynccontextmanager
async def staged(folder: Path, in_flight: InFlight, timeout: float = 10.0) -> AsyncIterator[Stage]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    stage = Stage(folder, in_flight, timeout)
    parts = (stage.generator.run(), stage.worker.run(), stage.refit.run())
    tasks = [asyncio.create_task(part) for part in parts]
    try:
        await stage.announce(1)
        assert (await stage.acknowledged()).error == ""
        yield stage
        for task in tasks:
            assert not task.done(), "nothing of this ends a worker"
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        stage.publisher.close()
        torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollout_worker, "_GIVE_BACK_SECONDS", 0.0)


@pytest.mark.parametrize("in_flight", [InFlight.INTERRUPT, InFlight.CONTINUE])
async def test_samples_go_on_with_new_weights_and_every_token_says_so(
    tmp_path: Path, in_flight: InFlight
) -> None:
    """The refit does not wait for them; what was asked for meanwhile begins with the new ones."""
    async with staged(tmp_path, in_flight) as stage:
        await stage.ask("0/0", 40)
        await stage.running(SAMPLES)
        await stage.announce(2)
        await stage.ask("0/1", 5, min_version=2)
        assert (await stage.acknowledged()).error == ""
        stage.compute.may_step.set()
        found = await stage.rollouts(2 * SAMPLES)
    for (name, _), versions in found.items():
        assert versions == sorted(versions)
        assert set(versions) == ({1, 2} if name == "0/0" else {2})


async def test_drained_samples_are_of_one_version(tmp_path: Path) -> None:
    async with staged(tmp_path, InFlight.DRAIN) as stage:
        await stage.ask("0/0", 40)
        await stage.running(SAMPLES)
        await stage.announce(2)
        stage.compute.may_step.set()
        assert (await stage.acknowledged()).error == ""
        await stage.ask("0/1", 5, min_version=2)
        found = await stage.rollouts(2 * SAMPLES)
    assert {name: set(versions) for (name, _), versions in found.items()} == {"0/0": {1}, "0/1": {2}}


@pytest.mark.parametrize("in_flight", [InFlight.INTERRUPT, InFlight.CONTINUE])
async def test_weights_that_fail_the_canary_make_no_token(tmp_path: Path, in_flight: InFlight) -> None:
    """What stood still goes back, is given out again, and is made whole once a refit succeeds."""
    async with staged(tmp_path, in_flight) as stage:
        await stage.ask("0/0", 40)
        await stage.running(SAMPLES)
        await stage.announce(2, wrong=0.5)
        refused = await stage.acknowledged()
        assert "CanaryMismatch" in refused.error and stage.refit.quarantined
        stage.compute.may_step.set()
        while stage.generator.in_flight or stage.generator.load.running:  # noqa: ASYNC110
            await asyncio.sleep(0)
        made = stage.generator.load.generated_tokens
        await asyncio.sleep(0.05)
        assert stage.generator.load.generated_tokens == made
        await stage.announce(3)
        assert (await stage.acknowledged()).error == ""
        assert list((await stage.rollouts(SAMPLES)).values()) == [[3] * 40] * SAMPLES


async def test_a_refit_without_end_gives_the_work_back_at_its_deadline(tmp_path: Path) -> None:
    async with staged(tmp_path, InFlight.INTERRUPT, timeout=0.5) as stage:
        await stage.ask("0/0", 40)
        await stage.running(SAMPLES)
        stage.compute.stuck = "refit"
        await stage.announce(2)
        stage.compute.may_step.set()
        late = await stage.acknowledged()
        assert late.error == "not done within 0.5 s: still waiting for the weights to be copied"
        assert stage.generator.in_flight == 0
        stage.compute.stuck = ""
        await stage.announce(3)
        assert (await stage.acknowledged()).error == ""
        assert list((await stage.rollouts(SAMPLES)).values()) == [[3] * 40] * SAMPLES


async def test_quiet_it_makes_no_token_and_what_leaves_meanwhile_is_gone(tmp_path: Path) -> None:
    """No deadlock between what leaves, what comes and what stands still; one has it quiet at a time."""
    async with staged(tmp_path, InFlight.INTERRUPT) as stage:
        generator, order = stage.generator, list[str]()
        stays, goes = group("stays", 1, 2, max_tokens=30), group("goes", 3, 4, max_tokens=30)

        async def take(request: Any) -> dict[tuple[str, int], GeneratedSample]:
            return await generated(generator, request)

        async def second() -> None:
            async with generator.quiet(InFlight.CONTINUE):
                order.append("second")

        staying, going = asyncio.create_task(take(stays)), asyncio.create_task(take(goes))
        await stage.running(4)
        stage.compute.may_step.set()
        async with generator.quiet(InFlight.INTERRUPT):
            order.append("first")
            made = generator.load.generated_tokens
            waiting = asyncio.create_task(second())
            going.cancel()
            coming = asyncio.create_task(take(group("comes", 5, max_tokens=4)))
            again = asyncio.create_task(take(goes))
            for _ in range(50):
                await asyncio.sleep(0)
            assert generator.load.generated_tokens == made
            order.append("first ends")
        await waiting
        assert order == ["first", "first ends", "second"]
        assert len(await staying) == 2 and len(await coming) == 1 and len(await again) == 2


async def test_what_waits_for_its_turn_ends_with_the_rest(tmp_path: Path) -> None:
    """Of a refit that came to nothing: also what the engine had not been given yet."""
    async with staged(tmp_path, InFlight.INTERRUPT) as stage:
        generator = stage.generator
        running = asyncio.create_task(generated(generator, group("running", 1, max_tokens=30)))
        await stage.running(1)
        with pytest.raises(ValueError, match="did not come"):
            async with generator.quiet(InFlight.INTERRUPT):
                queued = asyncio.create_task(generated(generator, group("queued", 1)))
                await asyncio.sleep(0)
                await generator.refit([], 2, InFlight.INTERRUPT)
        stage.compute.may_step.set()
        for task in (running, queued):
            with pytest.raises(EngineLost, match="a refit came to nothing"):
                await task
