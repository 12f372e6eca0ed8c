"""End of the trackers: the outcome of the job, and a timeout."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kubealign_services.roles.driver.errors import ShutdownRequested, UnrecoverableError
from kubealign_services.roles.driver.metrics import trackers
from kubealign_services.roles.driver.metrics.trackers import run_trackers
from kubealign_services.runtime.process.failures import PermanentFailure
from kubealign_services.telemetry.trackers.background import BackgroundTracker
from kubealign_services.telemetry.trackers.contract import RunOutcome, TrackerNotInstalled


class HangingTracker:
    """Tracker that records its outcome and then hangs until `go` is set, if given."""

    def __init__(self, go: threading.Event | None = None) -> None:
        self.ending: RunOutcome | None = None
        self._go = go

    def step(self, step: int, fence: int, metrics: Any) -> None:
        raise AssertionError("no step was made")

    def close(self, ending: RunOutcome) -> None:
        self.ending = ending
        if self._go is not None:
            self._go.wait()


def context(folder: Path) -> Any:
    """Return the part of a driver's context that trackers use, with a grace period of half a second."""
    lifecycle = SimpleNamespace(grace_period_seconds=0.5)
    return SimpleNamespace(
        job=SimpleNamespace(spec=SimpleNamespace(lifecycle=lifecycle)),
        settings=SimpleNamespace(run_dir=folder),
        stop=asyncio.Event(),
        abandoned_thread="",
    )


@pytest.fixture
def go() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


@pytest.mark.parametrize(
    ("raised", "ending"),
    [
        (None, RunOutcome.SUCCEEDED),
        (ShutdownRequested(), RunOutcome.STOPPED),
        (UnrecoverableError("no numbers"), RunOutcome.FAILED),
        (ConnectionError(), RunOutcome.FAILED),
    ],
)
async def test_a_tracker_receives_the_outcome(
    raised: Exception | None, ending: RunOutcome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder, around = HangingTracker(), context(tmp_path)
    monkeypatch.setattr(
        trackers, "open_trackers", lambda job, folder: [BackgroundTracker("it", lambda: recorder)]
    )
    with nullcontext() if raised is None else pytest.raises(type(raised)):
        async with run_trackers(around) as (tracker,):
            assert tracker.name == "it"
            if raised is not None:
                raise raised
    assert recorder.ending is ending
    assert around.abandoned_thread == ""


async def test_a_hanging_tracker_is_abandoned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, go: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    hanging, sound, around = HangingTracker(go), HangingTracker(), context(tmp_path)
    both = [BackgroundTracker("hanging", lambda: hanging), BackgroundTracker("sound", lambda: sound)]
    monkeypatch.setattr(trackers, "open_trackers", lambda job, folder: both)
    with pytest.raises(ShutdownRequested):
        async with run_trackers(around):
            around.stop.set()
            raise ShutdownRequested
    assert around.abandoned_thread == "the tracker hanging"
    assert "did not end in time" in caplog.text
    assert both[1].wait_closed(20)
    assert sound.ending is RunOutcome.STOPPED


async def test_a_missing_library_fails_the_job_for_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(job: Any, folder: Path) -> list[BackgroundTracker]:
        raise TrackerNotInstalled("pip install 'kubealign[trackers]'")

    monkeypatch.setattr(trackers, "open_trackers", refuse)
    with pytest.raises(PermanentFailure, match="pip install"):
        async with run_trackers(context(tmp_path)):
            pass
