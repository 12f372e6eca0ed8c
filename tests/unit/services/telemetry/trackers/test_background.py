"""Background trackers: one that hangs, one that fails, one that is slow."""

import json
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from kubealign.spec.job import AlignmentJob
from kubealign_services.telemetry.json_values import to_json
from kubealign_services.telemetry.trackers import factory as opening
from kubealign_services.telemetry.trackers.background import BackgroundTracker
from kubealign_services.telemetry.trackers.contract import RequiredLibrary, RunOutcome, TrackerNotInstalled
from kubealign_services.telemetry.trackers.factory import open_trackers, strip_pod_templates
from kubealign_services.telemetry.trackers.json_lines import JsonLinesWriter
from support.bad_specs import whole_job


class RecordingTracker:
    """Records its calls; waits for `go` before each step, if it has one."""

    def __init__(self, go: threading.Event | None = None) -> None:
        self.steps: list[int] = []
        self.ending: RunOutcome | None = None
        self.begun = threading.Event()
        self._go = go

    def step(self, step: int, fence: int, metrics: Mapping[str, float]) -> None:
        self.begun.set()
        if self._go is not None:
            self._go.wait()
        self.steps.append(step)

    def close(self, ending: RunOutcome) -> None:
        self.ending = ending


def test_queue_is_written_before_close() -> None:
    recorder = RecordingTracker()
    tracker = BackgroundTracker("kept", lambda: recorder)
    for step in range(100):
        tracker.step(step, 1, {"reward/mean": 0.5})
    tracker.request_close(RunOutcome.SUCCEEDED)
    assert tracker.wait_closed(20)
    assert recorder.steps == list(range(100))
    assert recorder.ending is RunOutcome.SUCCEEDED


def test_hanging_tracker_only_drops_metrics(caplog: pytest.LogCaptureFixture) -> None:
    go = threading.Event()
    recorder = RecordingTracker(go)
    tracker = BackgroundTracker("slow", lambda: recorder, max_queued=3)
    tracker.step(0, 1, {})
    assert recorder.begun.wait(20)
    for step in range(1, 10):
        tracker.step(step, 1, {})
    tracker.request_close(RunOutcome.STOPPED)
    assert not tracker.wait_closed(0.05)
    assert tracker.dropped == 6
    assert caplog.text.count("does not keep up") == 1
    go.set()
    assert tracker.wait_closed(20)
    assert recorder.steps == [0, 1, 2, 3]
    assert recorder.ending is RunOutcome.STOPPED


def test_tracker_that_cannot_be_opened_warns_once(caplog: pytest.LogCaptureFixture) -> None:
    def refuse() -> RecordingTracker:
        raise PermissionError("no key")

    tracker = BackgroundTracker("wb", refuse, max_queued=2)
    assert tracker.wait_closed(20)
    for step in range(5):
        tracker.step(step, 1, {})
    tracker.request_close(RunOutcome.SUCCEEDED)
    (record,) = [record for record in caplog.records if "tracker failed" in record.message]
    assert (record.__dict__["tracker"], record.__dict__["cause"]) == ("wb", "PermissionError: no key")
    assert tracker.dropped == 0, "nothing waits for one that has gone"


def test_missing_library_is_named_before_any_tracker_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = whole_job("sft")
    document["spec"]["trackers"] = [
        {"name": "lines", "jsonLines": {}},
        {"name": "curves", "weightsAndBiases": {}},
    ]
    missing = {key: RequiredLibrary("kubealign_has_no_such_module") for key in opening._LIBRARIES}
    monkeypatch.setattr(opening, "_LIBRARIES", missing)
    with pytest.raises(
        TrackerNotInstalled, match=r"spec.trackers, curves: .*pip install 'kubealign\[trackers\]'"
    ):
        open_trackers(AlignmentJob.model_validate(document), tmp_path)
    assert not (tmp_path / "trackers").exists()


def test_pod_templates_are_not_sent_to_trackers() -> None:
    spec = {
        "seed": 1,
        "podTemplate": {"spec": {}},
        "rewards": [{"name": "a", "podTemplate": {}, "weight": 2.0}],
    }
    assert strip_pod_templates(spec) == {"seed": 1, "rewards": [{"name": "a", "weight": 2.0}]}


def test_json_lines(tmp_path: Path) -> None:
    for fence in (1, 2):
        tracker = JsonLinesWriter(tmp_path)
        tracker.step(3, fence, {"reward/mean": 0.5 * fence, "kl/reference": float("nan")})
        tracker.close(RunOutcome.STOPPED)
    first, second = map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())
    assert (first["step"], first["fence"], first["metrics"]["reward/mean"]) == (3, 1, 0.5)
    assert (second["fence"], second["metrics"]) == (2, {"reward/mean": 1.0, "kl/reference": "nan"})
    assert to_json(first["metrics"]) == '{"reward/mean":0.5,"kl/reference":"nan"}'
