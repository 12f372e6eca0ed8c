"""Generation with weights whose checksums are still being verified: no sample is handed out before
verification, and none if it fails.
"""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kubealign.spec.sections.rollout import InFlightPolicy
from kubealign.v1 import refit_pb2
from kubealign_services.generation.contract import EngineLost
from kubealign_services.roles.rollout import worker as rollout_worker
from kubealign_services.weights.receive import part_fetcher
from support.refitted_worker import SAMPLES, Stage, staged

pytestmark = pytest.mark.timeout(60)

HEADER_BYTES = 64


class Checks:
    """The real checksum verification, delayed until it may run."""

    def __init__(self) -> None:
        self.may = threading.Event()
        self.may.set()
        self.real = part_fetcher.verify_checksums
        self.calls = 0

    def __call__(self, snapshot: memoryview, tensors: Any, source: str) -> None:
        assert self.may.wait(30)
        self.calls += 1
        self.real(snapshot, tensors, source)


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> Checks:
    monkeypatch.setattr(rollout_worker, "_REDELIVERY_DELAY_SECONDS", 0.0)
    started = Checks()
    monkeypatch.setattr(part_fetcher, "verify_checksums", started)
    return started


def bit_in(folder: Path, announcement: refit_pb2.WeightsAnnouncement) -> Callable[[], None]:
    """Return a function that flips the lowest bit of one weight, which no canary detects; called again, it
    flips the bit back.
    """
    (part,) = announcement.parts
    path = folder / "memory" / part.sources[0].shared_memory.name
    offset = HEADER_BYTES + part.tensors[0].offset_bytes

    def flip() -> None:
        with path.open("r+b") as file:
            file.seek(offset)
            (byte,) = file.read(1)
            file.seek(offset)
            file.write(bytes([byte ^ 1]))

    return flip


async def idle(stage: Stage) -> None:
    """Wait until the engine has finished all requests."""
    while stage.generator.load.running or stage.generator.load.waiting:  # noqa: ASYNC110
        await asyncio.sleep(0)


async def test_samples_are_handed_out_after_verification(tmp_path: Path, checks: Checks) -> None:
    async with staged(tmp_path, InFlightPolicy.DRAIN) as stage:
        checks.may.clear()
        await stage.announce(2)
        await stage.ask("0/0", 5, min_version=2)
        await stage.running(SAMPLES)
        scoring = asyncio.create_task(stage.generator.continuation_logprobs([1], [[2]]))
        stage.compute.may_step.set()
        await idle(stage)
        assert await stage.other.pull("rollouts", "driver", 1, 0.1) == []
        assert await stage.other.pull("refit-acks", "driver", 1, 0.1) == []
        assert not scoring.done()
        checks.may.set()
        assert (await stage.acknowledged()).error == ""
        assert list((await stage.rollouts(SAMPLES)).values()) == [[2] * 5] * SAMPLES
        assert (await scoring)[1] == 2


@pytest.mark.parametrize(
    "in_flight", [InFlightPolicy.INTERRUPT, InFlightPolicy.CONTINUE, InFlightPolicy.DRAIN]
)
async def test_samples_of_wrong_weights_are_dropped_and_regenerated(
    tmp_path: Path, checks: Checks, in_flight: InFlightPolicy
) -> None:
    """The bytes are wrong once, and right when they are fetched again."""
    async with staged(tmp_path, in_flight) as stage:
        if in_flight is not InFlightPolicy.DRAIN:
            await stage.ask("0/0", 40)
            await stage.running(SAMPLES)
        checks.may.clear()
        started = checks.calls
        flip = bit_in(tmp_path, await stage.announce(2, harm=lambda one: bit_in(tmp_path, one)()))
        if in_flight is InFlightPolicy.DRAIN:
            await stage.ask("0/0", 40, min_version=2)
        while stage.refit.current is None or stage.refit.current.version < 2:
            await stage.compute.more(0)
        await stage.running(SAMPLES)
        scoring = asyncio.create_task(stage.generator.continuation_logprobs([1], [[2]]))
        real = checks.real

        def mended_after(snapshot: memoryview, tensors: Any, source: str) -> None:
            try:
                real(snapshot, tensors, source)
            finally:
                if checks.calls == started + 1:
                    flip()

        checks.real = mended_after
        checks.may.set()
        assert (await stage.acknowledged()).error == ""
        assert checks.calls == started + 2
        with pytest.raises(EngineLost, match=r"not what was sent: 1 of .* have the wrong checksum"):
            await scoring
        stage.compute.may_step.set()
        assert list((await stage.rollouts(SAMPLES)).values()) == [[2] * 40] * SAMPLES


async def test_weights_that_stay_wrong_yield_no_sample(tmp_path: Path, checks: Checks) -> None:
    async with staged(tmp_path, InFlightPolicy.INTERRUPT) as stage:
        checks.may.clear()
        await stage.announce(2, harm=lambda one: bit_in(tmp_path, one)())
        await stage.ask("0/0", 5, min_version=2)
        await stage.running(SAMPLES)
        stage.compute.may_step.set()
        await idle(stage)
        checks.may.set()
        refused = await stage.acknowledged()
        assert refused.error.startswith("CorruptTransfer: 1 of ") and stage.refit.quarantined
        assert stage.refit.current is None
        assert await stage.other.pull("rollouts", "driver", 1, 0.1) == []
        await stage.announce(3)
        assert (await stage.acknowledged()).error == ""
        assert list((await stage.rollouts(SAMPLES)).values()) == [[3] * 5] * SAMPLES


async def test_wrong_bytes_are_reported_instead_of_the_canary(tmp_path: Path) -> None:
    def blank(announcement: refit_pb2.WeightsAnnouncement) -> None:
        (part,) = announcement.parts
        path = tmp_path / "memory" / part.sources[0].shared_memory.name
        with path.open("r+b") as file:
            file.seek(HEADER_BYTES)
            file.write(bytes(part.size_bytes))

    async with staged(tmp_path, InFlightPolicy.DRAIN) as stage:
        await stage.announce(2, harm=blank)
        refused = await stage.acknowledged()
        assert refused.error.startswith("CorruptTransfer: ") and "wrong checksum" in refused.error


async def test_the_refit_deadline_includes_the_checksums(tmp_path: Path, checks: Checks) -> None:
    async with staged(tmp_path, InFlightPolicy.INTERRUPT, timeout=0.5) as stage:
        checks.may.clear()
        await stage.announce(2)
        late = await stage.acknowledged()
        assert late.error == "not done within 0.5 s: still waiting for the checksums"
        assert stage.refit.current is None
        checks.may.set()
