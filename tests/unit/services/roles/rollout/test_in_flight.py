"""In-flight responses during a refit: a rollout worker with a real engine and a real receiver, on an
in-memory bus.
"""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from kubealign.spec.sections.rollout import InFlightPolicy
from kubealign_services.generation.contract import EngineLost, GeneratedSample
from kubealign_services.roles.rollout import worker as rollout_worker
from support.engine_contract.generation import generated, group
from support.refitted_worker import SAMPLES, staged

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollout_worker, "_REDELIVERY_DELAY_SECONDS", 0.0)


@pytest.mark.parametrize("in_flight", [InFlightPolicy.INTERRUPT, InFlightPolicy.CONTINUE])
async def test_samples_continue_with_new_weights_and_record_each_tokens_version(
    tmp_path: Path, in_flight: InFlightPolicy
) -> None:
    """The refit does not wait for them; requests that arrive meanwhile begin with the new weights."""
    async with staged(tmp_path, in_flight) as stage:
        await stage.ask("0/0", 40)
        await stage.running(SAMPLES)
        await stage.announce(2)
        await stage.ask("0/1", 5, min_version=2)
        assert (await stage.acknowledged()).error == ""
        stage.compute.may_step.set()
        token_versions = await stage.rollouts(2 * SAMPLES)
    for (name, _), versions in token_versions.items():
        assert versions == sorted(versions)
        assert set(versions) == ({1, 2} if name == "0/0" else {2})


async def test_drained_samples_are_of_one_version(tmp_path: Path) -> None:
    async with staged(tmp_path, InFlightPolicy.DRAIN) as stage:
        await stage.ask("0/0", 40)
        await stage.running(SAMPLES)
        await stage.announce(2)
        stage.compute.may_step.set()
        assert (await stage.acknowledged()).error == ""
        await stage.ask("0/1", 5, min_version=2)
        token_versions = await stage.rollouts(2 * SAMPLES)
    assert {name: set(versions) for (name, _), versions in token_versions.items()} == {"0/0": {1}, "0/1": {2}}


@pytest.mark.parametrize("in_flight", [InFlightPolicy.INTERRUPT, InFlightPolicy.CONTINUE])
async def test_weights_that_fail_the_canary_generate_no_token(
    tmp_path: Path, in_flight: InFlightPolicy
) -> None:
    """Paused items are returned, delivered again, and completed once a refit succeeds."""
    async with staged(tmp_path, in_flight) as stage:
        await stage.ask("0/0", 40)
        await stage.running(SAMPLES)
        await stage.announce(2, wrong=0.5)
        refused = await stage.acknowledged()
        assert "CanaryMismatch" in refused.error and stage.refit.quarantined
        stage.compute.may_step.set()
        while stage.generator.in_flight or stage.generator.load.running:  # noqa: ASYNC110
            await asyncio.sleep(0)
        tokens_before = stage.generator.load.generated_tokens
        await asyncio.sleep(0.05)
        assert stage.generator.load.generated_tokens == tokens_before
        await stage.announce(3)
        assert (await stage.acknowledged()).error == ""
        assert list((await stage.rollouts(SAMPLES)).values()) == [[3] * 40] * SAMPLES


async def test_a_refit_without_end_returns_the_work_at_its_deadline(tmp_path: Path) -> None:
    async with staged(tmp_path, InFlightPolicy.INTERRUPT, timeout=0.5) as stage:
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


async def test_paused_it_generates_no_token_and_forgets_requests_that_leave(tmp_path: Path) -> None:
    """No deadlock between requests that leave, arrive and wait; one caller pauses at a time."""
    async with staged(tmp_path, InFlightPolicy.INTERRUPT) as stage:
        generator, order = stage.generator, list[str]()
        stays, goes = group("stays", 1, 2, max_tokens=30), group("goes", 3, 4, max_tokens=30)

        async def take(request: Any) -> dict[tuple[str, int], GeneratedSample]:
            return await generated(generator, request)

        async def second() -> None:
            async with generator.paused(InFlightPolicy.CONTINUE):
                order.append("second")

        staying, going = asyncio.create_task(take(stays)), asyncio.create_task(take(goes))
        await stage.running(4)
        stage.compute.may_step.set()
        async with generator.paused(InFlightPolicy.INTERRUPT):
            order.append("first")
            tokens_before = generator.load.generated_tokens
            waiting = asyncio.create_task(second())
            going.cancel()
            coming = asyncio.create_task(take(group("comes", 5, max_tokens=4)))
            again = asyncio.create_task(take(goes))
            for _ in range(50):
                await asyncio.sleep(0)
            assert generator.load.generated_tokens == tokens_before
            order.append("first ends")
        await waiting
        assert order == ["first", "first ends", "second"]
        assert len(await staying) == 2 and len(await coming) == 1 and len(await again) == 2


async def test_queued_requests_end_with_the_running_ones(tmp_path: Path) -> None:
    """A failed refit also ends requests that the engine has not received yet."""
    async with staged(tmp_path, InFlightPolicy.INTERRUPT) as stage:
        generator = stage.generator
        running = asyncio.create_task(generated(generator, group("running", 1, max_tokens=30)))
        await stage.running(1)
        with pytest.raises(ValueError, match="did not come"):
            async with generator.paused(InFlightPolicy.INTERRUPT):
                queued = asyncio.create_task(generated(generator, group("queued", 1)))
                await asyncio.sleep(0)
                await generator.refit([], 2, InFlightPolicy.INTERRUPT)
        stage.compute.may_step.set()
        for task in (running, queued):
            with pytest.raises(EngineLost, match="a refit came to nothing"):
                await task
